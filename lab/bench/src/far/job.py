"""A matrix transposed, scaled and sorted, and what that took. Arguments: bytes, a path to map files at or nothing, groups to join."""

import json
import resource
import sys
import time

import numpy

bytes_asked, path, groups = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
for group in groups:
    with open(f"{group}/cgroup.procs", "w") as members:
        members.write("0")
side = int((bytes_asked // 16) ** 0.5)


def matrix(name):
    if path:
        return numpy.memmap(path + name, dtype=numpy.float64, mode="w+", shape=(side, side))
    return numpy.empty((side, side))


def faults():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt


matrices = [matrix("a"), matrix("b")]
random = numpy.random.default_rng(1)
for row in range(side):
    matrices[0][row] = random.integers(1, 1 << 20, side)
matrices[1][:] = 0
print("filled", flush=True)

before, began = faults(), time.monotonic()
matrices[1][:] = matrices[0].T
matrices[1] *= 2
matrices[1].reshape(-1).sort()
seconds, after = time.monotonic() - began, faults()

found = f"{matrices[1].sum():.0f} {matrices[1][side // 3, side // 7]:.0f} {matrices[0].sum():.0f}"
with open("/proc/self/status") as status:
    resident = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))
minor, major = (last - first for first, last in zip(before, after))
done = {"seconds": seconds, "major_faults": major, "minor_faults": minor, "resident_bytes": resident, "found": found}
print("done " + json.dumps(done), flush=True)
