/** @file
 * evoformer.h: all of libevoformer's public API. Include this one file.
 *
 * The order of use: evo_context_create (a device, by name) -> a descriptor per op -> evo_OP_plan_create ->
 * evo_OP_pack_weights (once per set of weights) -> evo_OP_execute (as often as wanted).
 *
 * Conventions that hold for every function:
 * - It returns an evo_status; nothing aborts, exits or prints. evo_last_error() gives this thread's text.
 * - Tensors are row-major, the last index fastest; strides are counted in elements, sizes in bytes.
 * - The caller owns all memory: tensors, packed weights, workspace. Objects returned through `**out` are the
 *   caller's to destroy; strings returned belong to the object that gave them. A call that fails makes no object: what
 *   its `**out` points to is then NULL or as it was. Memory of 0 bytes may be NULL.
 * - Structs that begin with `size` start from their _INIT macro, which sets it. A smaller one is refused, and a larger one unless
 *   its rest is zero; of structs that are filled in (evo_..._info) as much is written as `size` says.
 * - Contexts, plans and packs may be used by any number of threads at once. Streams, events and graphs are used
 *   by one thread at a time. A plan keeps what it needs of its context alive, so the order of destruction is free.
 */
#ifndef EVOFORMER_EVOFORMER_H
#define EVOFORMER_EVOFORMER_H

#include "evoformer/context.h"
#include "evoformer/opm.h"
#include "evoformer/plan.h"
#include "evoformer/runtime.h"
#include "evoformer/status.h"
#include "evoformer/tensor.h"
#include "evoformer/trimul.h"
#include "evoformer/version.h"

#endif
