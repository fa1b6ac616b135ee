/* version.h: the one place that holds the library's version; Meson reads it for the project and the soname. */
#ifndef EVOFORMER_VERSION_H
#define EVOFORMER_VERSION_H

#define EVO_VERSION_MAJOR 0
#define EVO_VERSION_MINOR 1
#define EVO_VERSION_PATCH 0

#endif
