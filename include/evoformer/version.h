/** @file
 * version.h: the one place that holds the library's version; Meson reads it for the project and the soname.
 */
#ifndef EVOFORMER_VERSION_H
#define EVOFORMER_VERSION_H

/** 0 until the interface is fixed (docs/abi.md). */
#define EVO_VERSION_MAJOR 0
/** Before 1.0 each of these is an interface of its own. */
#define EVO_VERSION_MINOR 1
/** Corrections alone. */
#define EVO_VERSION_PATCH 0

#endif
