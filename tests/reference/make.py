"""Writes all of tests/golden, or says whether what lies there is what would be written.

    python tests/reference/make.py [--check] [--device cuda] [--build build] [--only loss,blocks,..]

Needs torch, OpenCV, numpy and safetensors. Everything follows from names and seeds, in float64 where rounding
matters; the trainings' batches are made by this project's loaders: BUILD/tests/test_train_golden writes them.
--check compares: equal bytes, or as close as another machine or device may be (store.py). --device says where PyTorch
computes; what is written is meant to come from the CPU.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

import block_golden
import image_golden
import loss_golden
import model_golden
import store
import train_golden

ROOT = pathlib.Path(__file__).resolve().parents[2]


def trainings(to, build):
    program = pathlib.Path(build) / "tests" / "test_train_golden"
    if not program.exists():
        print(f"  train: left out: {program} is not built (make tests, or --build), and makes the batches")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "batches.safetensors")
        subprocess.run([program], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=300,
                       env=os.environ | {"SLUICE_BATCH_DUMP": path, "CMOCKA_MESSAGE_OUTPUT": "TAP"})
        train_golden.main(to, path)


def pt(to):
    """Other versions of PyTorch write other bytes, which says nothing: compared, never counted."""
    program = [sys.executable, pathlib.Path(__file__).with_name("pt_files.py")]
    if not to.check:
        subprocess.run(program, check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        new = pathlib.Path(folder) / "golden" / "pt"
        subprocess.run([*program, new], check=True)
        same = [(store.GOLDEN / "pt" / f.name).read_bytes() == f.read_bytes() for f in sorted(new.iterdir())]
    print(f"  pt/: {sum(same)} of {len(same)} files have the same bytes")


def main():
    parts = {"loss": loss_golden.main, "blocks": block_golden.main, "models": model_golden.main,
             "images": image_golden.main, "train": None, "pt": pt}
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--check", action="store_true")
    args.add_argument("--device", default="cpu")
    args.add_argument("--build", default=ROOT / "build")
    args.add_argument("--only", default=",".join(parts))
    args = args.parse_args()
    torch.set_num_threads(1)  # sums in one order
    torch.set_default_device(args.device)
    to = store.Store(check=args.check)
    for name in args.only.split(","):
        print(name)
        trainings(to, args.build) if name == "train" else parts[name](to)
    total = sum(p.stat().st_size for p in store.GOLDEN.rglob("*") if p.is_file())
    print(f"{total} bytes in {store.GOLDEN}" + (f", {to.failures} files differ" if args.check else ""))
    return to.failures > 0


if __name__ == "__main__":
    sys.exit(main())
