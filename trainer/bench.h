/* sluice-trainer --bench: a training step measured, as one line of JSON; a child of `sluice bench
 * step` (tools/cmd_bench.c), which gives it a deadline.
 *
 *   bench                     "step"
 *   model, classes, batch, imgsz, optimizer, device (its name), format (bf16, fp16, fp32)
 *   steps, recorded           how many were measured; whether as recorded steps
 *   ms_per_step               median from one step's end to the next one's, forward to EMA, the batch
 *                             on the device; ms_least, ms_most beside it
 *   img_per_s                 batch / ms_per_step
 *   peak_gib                  = arena_gib + overhead_gib: the planned arena, and what kernels,
 *                             libraries and recorded steps take (on a CPU the process's)
 *   planned_gib               what a run allows for
 *   loss                      [box, cls, dfl] of the last step
 *   phases                    ms of image, forward, loss, backward, exchange, update: of a step that
 *                             is not recorded
 *   copy_gb_s, tflops         what floors are made with: a large copy, read and written bytes together;
 *                             the best convolution of this step, or tflops=
 *   tflops_from               "best convolution", "given"
 *   operations                all of a step by name, dearest first: name, calls, ms, floor_ms, gbytes,
 *                             gflop
 *   dearest                   the ten dearest calls: name, layer, shape, ms, floor_ms, gbytes, gflop
 *
 * A floor is the larger of bytes over the copy's rate and operations over the rate (bench_ops.h).
 */
#ifndef SLUICE_TRAINER_BENCH_H
#define SLUICE_TRAINER_BENCH_H

/* With --bench as the first word, then --steps, --warmup, --classes, --boxes, --seconds, --tflops and
 * options of train (key=value) in any order; --to FD: answered there, else on standard output. */
int bench_main(int argc, char **argv);

#endif
