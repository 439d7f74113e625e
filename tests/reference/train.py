"""Optimiser, schedule and moving average of a training, stated with PyTorch (facts/yolo.md 4)."""
import copy
import math

import torch
from torch import nn


class Schedule:
    """o: epochs, batch, nbs, steps (of an epoch), images, nc, and the options of facts/yolo.md 2 by their names."""

    def __init__(self, o):
        self.o = o
        self.kind, self.lr0, self.momentum, self.bias_lr = o["optimizer"], o["lr0"], o["momentum"], o["warmup_bias_lr"]
        if self.kind == "auto":  # 4.1, the rule of 8.3
            updates = math.ceil(o["images"] / max(o["batch"], o["nbs"])) * o["epochs"]
            self.kind = "SGD" if updates > 10000 else "AdamW"
            self.lr0 = 0.01 if self.kind == "SGD" else round(0.002 * 5 / (4 + o["nc"]), 6)
            self.momentum, self.bias_lr = 0.9, 0.0
        accumulate = max(round(o["nbs"] / o["batch"]), 1)
        self.decay = o["weight_decay"] * o["batch"] * accumulate / o["nbs"]
        self.warm = round(min(o["warmup_epochs"], o["epochs"] - 1) * o["steps"])
        self.accumulate, self.beta = accumulate, self.momentum

    def factor(self, epoch):
        x = epoch / self.o["epochs"]
        if self.o["cos_lr"]:
            return (1 - math.cos(math.pi * x)) / 2 * (self.o["lrf"] - 1) + 1
        return max(1 - x, 0) * (1 - self.o["lrf"]) + self.o["lrf"]

    def at(self, ni):
        """Rates of weights, norms and biases, momentum and accumulation for iteration ni; to be asked in order,
        because what warm-up sets stays: rates to the epoch's end, the others for good."""
        lr = self.lr0 * self.factor(ni // self.o["steps"])
        if ni % self.o["steps"] == 0:
            self.rates = [lr, lr, lr]
        if ni < self.warm:
            mix = lambda a, b: a + (b - a) * ni / self.warm
            self.rates = [mix(0, lr), mix(0, lr), mix(self.bias_lr, lr)]
            self.accumulate = max(round(mix(1, self.o["nbs"] / self.o["batch"])), 1)
            if self.kind == "SGD":
                self.beta = mix(self.o["warmup_momentum"], self.o["momentum"])
        return self.rates, self.beta, self.accumulate


def groups_of(model):
    """Weights that decay, weights of normalisations, biases."""
    out = [[], [], []]
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            if p.requires_grad:
                out[2 if "bias" in name else 1 if isinstance(module, nn.BatchNorm2d) else 0].append(p)
    return out


def optimiser(model, schedule):
    groups = [{"params": p, "weight_decay": d} for p, d in zip(groups_of(model), (schedule.decay, 0.0, 0.0))]
    if schedule.kind == "SGD":
        return torch.optim.SGD(groups, lr=schedule.lr0, momentum=schedule.momentum, nesterov=True)
    return torch.optim.AdamW(groups, lr=schedule.lr0, betas=(schedule.momentum, 0.999))


class Average:
    """Of every floating tensor of the state dict."""

    def __init__(self, model):
        self.model, self.updates = copy.deepcopy(model).eval(), 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = 0.9999 * (1 - math.exp(-self.updates / 2000))
        now = model.state_dict()
        for key, mean in self.model.state_dict().items():
            if mean.dtype.is_floating_point:
                mean.mul_(d).add_(now[key], alpha=1 - d)


class Training:
    """One rank. `step` takes a batch's loss function and returns what the schedule said."""

    def __init__(self, model, o):
        self.model, self.schedule = model.train(), Schedule(o)
        self.optimiser, self.average = optimiser(model, self.schedule), Average(model)
        self.ni, self.last_update = 0, -1

    def step(self, loss_of):
        rates, beta, accumulate = self.schedule.at(self.ni)
        for group, lr in zip(self.optimiser.param_groups, rates):
            group["lr"] = lr
            if "momentum" in group:
                group["momentum"] = beta
        loss_of(self.model).backward()
        if self.ni - self.last_update >= accumulate:
            nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
            self.optimiser.step()
            self.optimiser.zero_grad()
            self.average.update(self.model)
            self.last_update = self.ni
        self.ni += 1
        return [*rates, beta, accumulate]
