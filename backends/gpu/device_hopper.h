/*
 * device_hopper.h: what kernels of tier `hopper` use beyond device.h, from the one vendor that has such chips; its file says what
 * each name does.
 */
#ifndef EVO_BACKENDS_GPU_DEVICE_HOPPER_H
#define EVO_BACKENDS_GPU_DEVICE_HOPPER_H

#include "backends/cuda/device_hopper.h"

#endif
