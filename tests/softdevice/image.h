// The first line of an image, as `sscanf` reads it and `nvrtc.cpp` writes it.
#pragma once

#define IMAGE_OF_OBJECT "softdevice object sm_%d %llu bytes\n%n"
#define IMAGE_OF_SOURCE "softdevice source sm_%d\n%n"
