/* A model whose export is worth comparing: normalisation far from what a new model has, outputs that
 * are neither all alike nor saturated. And what the program itself computes with it, written for
 * tests/reference/onnx_check.py. Tests only. */
#ifndef SLUICE_TESTS_ONNX_CASE_H
#define SLUICE_TESTS_ONNX_CASE_H

#include "trainer/graph.h"

/* Changes new weights: gamma, beta, running mean and variance to draws around 1, 0, 0 and 1 with
 * spreads of about a half, and the head's last layers to where scores and boxes differ. */
void onnx_case_spoil(const graph_t *g, uint64_t seed, float *weights, float *buffers);

/* Writes to `folder`, for each case, NAME.safetensors (weights as a run writes them) and
 * NAME.run.safetensors (input [n, 3, h, w], raw head outputs [n, h, w, c] a level, detections after
 * suppression). */
void onnx_case_dump(const char *folder);

#endif
