/* The device's limit beside the policies of `stream`. */
#ifndef COLDBENCH_DEVICE_H
#define COLDBENCH_DEVICE_H

/* Let fio read the weights once in order, with O_DIRECT, reads of --read-size bytes, --depth (2) in
 * flight, and report the time that a token would take by it; returns what main() is to return. */
int device_measure(void);

#endif
