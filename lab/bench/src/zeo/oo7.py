"""OO7's small-3 database in ZODB, two clients of one ZEO server: what lab/bench measures netram beside.

One client (the writer) runs a traversal in a transaction and commits; the other (the reader) is told by the server
that objects have changed, and loads their new states. Both have the whole database in their caches. The database is the
one of lab/oo7, drawn with the same generator in the same order (generate.rs there).

    python oo7.py digest                     the database's digest, without ZODB
    python oo7.py measure DIRECTORY ROUNDS      JSON on standard output

Every object of OO7 that can change is an object of ZODB; connections are tuples in the part where they begin. The server,
the writer and the reader are processes, which talk by pipes when nothing is measured.
"""

import ctypes
import json
import os
import signal
import sys
import time

MASK = (1 << 64) - 1
COMPOSITES, PARTS, CONNECTIONS, LEVELS = 500, 20, 3, 7
DOCUMENT_BYTES, MANUAL_BYTES = 2000, 100_000
EXTENT, TYPES = 100_000, 10
# How long the reader may wait for a change, and everything may take.
PATIENCE_S, ALL_S = 60, 900


class Random:
    """SplitMix64, as lab/oo7/src/random.rs has it."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        mixed ^= mixed >> 31
        return ((mixed >> 32) * bound) >> 32

    def design(self, first, last):
        kind = self.below(TYPES)
        return kind, first + self.below(last - first + 1)


def text(sentence, length):
    return (sentence * (length // len(sentence) + 1))[: length - 1] + "\0"


class Plan:
    """What is drawn, before any object is made."""

    def __init__(self):
        random = Random(1)
        self.module = random.design(1000, 1999)
        # For each base assembly the composites that it uses, privately and shared, counted from 1.
        self.uses = []
        self.tree = self.assembly(random, 1)
        self.composites = [self.composite(random, number) for number in range(1, COMPOSITES + 1)]

    def assembly(self, random, level):
        design = random.design(1000, 1999)
        if level == LEVELS:
            chosen = [[1 + random.below(COMPOSITES) for _ in range(3)] for _ in range(2)]
            self.uses.append(chosen)
            return design, len(self.uses) - 1
        return design, [self.assembly(random, level + 1) for _ in range(3)]

    def composite(self, random, number):
        young = number % 10 == 0
        design = random.design(2000, 2999) if young else random.design(0, 999)
        parts = []
        for _ in range(PARTS):
            part = random.design(1000, 1999)
            x, y = random.below(EXTENT), random.below(EXTENT)
            parts.append((part, x, y, 1 + random.below(COMPOSITES)))
        links = []
        for at in range(PARTS):
            for connection in range(CONNECTIONS):
                to = (at + 1) % PARTS if connection == 0 else random.below(PARTS)
                links.append((at, to, random.below(TYPES), random.below(EXTENT)))
        return design, parts, links

    def digest(self):
        """Of what a traversal goes by: private uses, places, dates, connections."""
        digest = 0xCBF29CE484222325
        numbers = [used for private, _ in self.uses for used in sorted(private)]
        for _, parts, links in self.composites:
            for (_, date), x, y, document in parts:
                numbers += [date, x, y, document]
            numbers += [to for _, to, _, _ in links]
        for number in numbers:
            digest = ((digest ^ number) * 0x100000001B3) & MASK
        return digest


def classes():
    """The persistent classes. Made only where ZODB is, under names that it can find again."""
    from persistent import Persistent

    for name in ("Module", "Assembly", "Composite", "Part", "Document"):
        globals()[name] = type(name, (Persistent,), {"__module__": __name__})


def build(root, plan):
    def place(kind, design):
        made = kind()
        made.kind, made.date = design
        return made

    def assembly(drawn):
        design, below = drawn
        made = place(Assembly, design)
        if isinstance(below, int):
            bases.append(made)
            made.children = None
        else:
            made.children = tuple(assembly(child) for child in below)
        return made

    bases, composites = [], []
    module = place(Module, plan.module)
    module.manual = text("I am the manual for module #00000001.\n", MANUAL_BYTES)
    module.top = assembly(plan.tree)
    for number, (design, drawn, links) in enumerate(plan.composites, 1):
        composite = place(Composite, design)
        composite.id = number
        document = Document()
        document.title = "Composite Part %08d" % number
        document.text = text("I am the documentation for composite part #%08d.\n" % number, DOCUMENT_BYTES)
        composite.documentation = document
        parts = []
        for at, (part_design, x, y, about) in enumerate(drawn):
            part = place(Part, part_design)
            part.id, part.x, part.y, part.document = (number - 1) * PARTS + at + 1, x, y, about
            part.composite = composite
            parts.append(part)
        for at, part in enumerate(parts):
            part.to = tuple((kind, length, parts[to]) for begin, to, kind, length in links if begin == at)
        composite.parts, composite.root = tuple(parts), parts[0]
        composites.append(composite)
    for base, (private, shared) in zip(bases, plan.uses):
        # In the order of the composites' ids, as the build of lab/oo7 hooks them in.
        base.private = tuple(composites[used - 1] for used in sorted(private))
        base.shared = tuple(composites[used - 1] for used in sorted(shared))
    root["module"], root["composites"] = module, tuple(composites)


def swap(part):
    part.x, part.y = part.y, part.x


def composites(module):
    """The private composites, depth first, each as often as it is used."""
    ahead = [module.top]
    while ahead:
        assembly = ahead.pop()
        if assembly.children is None:
            yield from assembly.private
        else:
            ahead.extend(reversed(assembly.children))


def t6(module):
    count = 0
    for composite in composites(module):
        composite.root.x
        count += 1
    return count


def t12a(module):
    count = 0
    for composite in composites(module):
        swap(composite.root)
        count += 1
    return count


def graphs(module, change):
    count = 0
    for composite in composites(module):
        seen, ahead = set(), [composite.root]
        while ahead:
            part = ahead.pop()
            if part.id in seen:
                continue
            seen.add(part.id)
            change(part)
            count += 1
            ahead.extend(to for _, _, to in reversed(part.to))
    return count


def t1(module):
    return graphs(module, lambda part: part.x)


def t2b(module):
    return graphs(module, swap)


# What is measured: the traversal that changes, the one that walks the same way, the parts of a used composite that change.
OPERATIONS = {
    "t12a": (t12a, t6, lambda composite: (composite.root,)),
    "t2b": (t2b, t1, lambda composite: composite.parts),
}


def die_with_parent():
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A process of this program, which is told and tells one JSON value a line."""

    def __init__(self, run):
        (self.hears, says), (told, self.tells) = os.pipe(), os.pipe()
        self.process = os.fork()
        if self.process == 0:
            status = 1
            try:
                die_with_parent()
                os.close(self.hears), os.close(self.tells)
                run(os.fdopen(told), os.fdopen(says, "w"))
                status = 0
            finally:
                os._exit(status)
        os.close(says), os.close(told)
        self.hears, self.tells = os.fdopen(self.hears), os.fdopen(self.tells, "w")

    def tell(self, value):
        say(self.tells, value)

    def hear(self):
        line = self.hears.readline()
        if not line:
            raise SystemExit("a process of the measurement has ended")
        return json.loads(line)

    def end(self):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def say(out, value):
    out.write(json.dumps(value) + "\n")
    out.flush()


def serve(storage, out):
    """The ZEO server: on the disk, synced at each commit, or in memory."""
    from ZEO.StorageServer import StorageServer

    if storage:
        from ZODB.FileStorage import FileStorage

        kept = FileStorage(storage)
    else:
        from ZODB.MappingStorage import MappingStorage

        kept = MappingStorage()
    server = StorageServer(("127.0.0.1", 0), {"1": kept})
    say(out, list(server.addr))
    server.loop()


def connect(address):
    import ZEO
    import ZODB

    storage = ZEO.client(tuple(address), wait_timeout=PATIENCE_S, cache_size=256 << 20)
    return ZODB.DB(storage, cache_size=100_000, cache_size_bytes=0).open()


def used(module, which):
    """Each changing part once."""
    distinct = {composite._p_oid: composite for composite in composites(module)}
    return [part for composite in distinct.values() for part in which(composite)]


def follow(address, told, out):
    """The reader: for each line that it is told, waits until the parts of the operation have changed, and loads them."""
    import transaction

    connection = connect(address)
    module = connection.root()["module"]
    parts = {name: used(module, which) for name, (_, _, which) in OPERATIONS.items()}
    t1(module)
    say(out, {name: len(list) for name, list in parts.items()})
    for line in told:
        operation = json.loads(line)
        watched, deadline = parts[operation], time.monotonic() + PATIENCE_S
        before = sum(part.x for part in watched)
        say(out, "watching")
        while True:
            transaction.begin()
            # An invalidated object is a ghost until it is looked at.
            if watched[0]._p_changed is None:
                break
            if time.monotonic() > deadline:
                raise SystemExit("no change was seen")
        told = time.monotonic_ns()
        connection.prefetch(*watched)
        after = sum(part.x for part in watched)
        say(out, [told, time.monotonic_ns(), before, after])


def rounds(connection, reader, operation, count):
    """What was counted, and medians in microseconds: the walk that changes nothing; the walk that changes; the commit; the
    reader's loading; all from the beginning of the change until the reader has loaded it. The reader is told before the
    writer's commit returns, so that they overlap."""
    import transaction

    change, walk, which = OPERATIONS[operation]
    module = connection.root()["module"]
    changing = used(module, which)
    found = []
    for _ in range(count):
        transaction.begin()
        began = time.monotonic_ns()
        walk(module)
        walked = time.monotonic_ns() - began
        transaction.abort()
        reader.tell(operation)
        if reader.hear() != "watching":
            raise SystemExit("the reader does not watch")
        # It has said so before it began to poll.
        time.sleep(0.01)
        transaction.begin()
        began = time.monotonic_ns()
        updates = change(module)
        changed = time.monotonic_ns()
        transaction.commit()
        committed = time.monotonic_ns()
        told, seen, before, after = reader.hear()
        if before == after or after != sum(part.x for part in changing):
            raise SystemExit("the reader has not seen what the writer wrote")
        found.append((walked, changed - began, committed - changed, seen - told, seen - began))
    columns = [sorted(column)[len(found) // 2] / 1e3 for column in zip(*found)]
    names = ("walk_us", "change_us", "commit_us", "load_us", "total_us")
    return {"updates": updates, "parts": len(changing), **dict(zip(names, columns))}


def measure(directory, count):
    import transaction
    from importlib.metadata import version

    plan, stores = Plan(), {}
    for name, storage in (("memory", None), ("file", os.path.join(directory, "Data.fs"))):
        server = Child(lambda told, out: serve(storage, out))
        address = server.hear()
        connection = connect(address)
        build(connection.root(), plan)
        transaction.commit()
        reader = Child(lambda told, out: follow(address, told, out))
        reader.hear()
        module = connection.root()["module"]
        visited = t1(module)
        if visited != 729 * 3 * PARTS:
            raise SystemExit("t1 has visited %d parts" % visited)
        stores[name] = {operation: rounds(connection, reader, operation, count) for operation in OPERATIONS}
        reader.end(), server.end()
    versions = {name: version(name) for name in ("ZODB", "ZEO", "persistent")}
    python = "%d.%d.%d" % sys.version_info[:3]
    print(json.dumps({"python": python, "versions": versions, "digest": plan.digest(), "stores": stores}))


def main(arguments):
    match arguments:
        case ["digest"]:
            print(Plan().digest())
        case ["measure", directory, count]:
            die_with_parent()
            signal.alarm(ALL_S)
            classes()
            measure(directory, int(count))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
