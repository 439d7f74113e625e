/* Compiles a function once for each instruction set and picks at load time.
 *
 * Only for code whose result cannot depend on the instruction set: integers, or floats without
 * contraction (the Makefile gives loader/ -ffp-contract=off) and without reductions. The
 * sanitizers' runtimes are not up yet when the picking runs, so they get the one plain version.
 * Features rather than arch= names: those match one exact processor and pass over its successors.
 */
#ifndef SLUICE_LOADER_CLONES_H
#define SLUICE_LOADER_CLONES_H

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(SLUICE_SANITIZE) &&                  \
    !defined(__clang__)
#define SLUICE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SLUICE_CLONES
#endif

#endif
