/*
 * What memory this process may use: its control group's limit (cgroup v1 or v2, and of all groups
 * above), and how much of that and of the machine is free. Sources: cgroups(7), the kernel's
 * admin-guide/cgroup-v1/memory and admin-guide/cgroup-v2, proc_meminfo(5), madvise(2).
 */
#ifndef COLDBENCH_MEMORY_H
#define COLDBENCH_MEMORY_H

#include <stdint.h>

struct hints;

/* Find the process's groups; without any, the machine's memory is all there is. */
void memory_begin(void);

/* The least limit of the groups; MemAvailable where none has one or that is less. */
uint64_t memory_limit(void);

/* Bytes that could still be had by the groups: below each limit, page cache counting as free since
 * the kernel gives it up first. An answer of `enough` or more may be too low, which saves reading
 * the statistics. UINT64_MAX without a limit. */
uint64_t memory_free_in_groups(uint64_t enough);

/* MemAvailable of the machine. */
uint64_t memory_free_in_machine(void);

/* What this process holds itself (its resident set). */
uint64_t memory_own(void);

/* Fresh memory, not yet charged, aligned to 2 MiB where `huge` asks for such pages; NULL if the
 * kernel refuses. */
uint8_t *memory_map(uint64_t bytes, int huge, struct hints *hints);

#endif
