# `client.py KIND PORT write FROM`: one number a write from FROM + 1 on, each said when it is acknowledged. One that a killed client had begun may be there.
# `client.py KIND PORT check FIRST`: the last number, after all from FIRST on were found with what was put.
# `client.py KIND PORT shorten LAST`: numbers up to LAST may be removed, or stay.
# `client.py KIND PORT ping`: succeeds when the server answers, and has what the numbers go into.
import base64
import json
import socket
import sys


class Redis:
    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def ask(self, *commands):
        for words in commands:
            words = [str(word).encode() for word in words]
            parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
            self.file.write(b"".join(parts))
        self.file.flush()
        return [self.answer() for _ in commands]

    def answer(self):
        line = self.file.readline()
        assert line[:1] in b"+:$" and line.endswith(b"\r\n"), line
        length = int(line[1:]) if line.startswith(b"$") else -1
        return self.file.read(length + 2)[:-2].decode() if length >= 0 else line[1:-2].decode()

    def write(self, number):
        assert self.ask(["SET", number, filler(number)]) == ["OK"]

    def numbers(self, first):
        while True:
            group = range(first, first + 500)
            for number, there, value in zip(group, self.ask(*(["EXISTS", n] for n in group)), self.ask(*(["GET", n] for n in group))):
                if there == "1":
                    yield number, value
            if there == "0":
                return
            first += 500

    def shorten(self, last):
        assert self.ask(["FLUSHALL"]) == ["OK"]

    def ping(self):
        assert self.ask(["PING"]) == ["PONG"]


class Jetstream:
    # A message's number in the stream is the number; a repeated one is refused.
    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")
        self.file.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB inbox 1\r\n')

    def ask(self, subject, message=b"", header=b""):
        head = (b"HPUB %s inbox %d " % (subject, len(header))) if header else b"PUB %s inbox " % subject
        self.file.write(head + b"%d\r\n%s%s\r\n" % (len(header) + len(message), header, message))
        self.file.flush()
        while True:
            line = self.file.readline()
            assert line and not line.startswith(b"-ERR"), line
            if line.startswith(b"PING"):
                self.file.write(b"PONG\r\n")
                self.file.flush()
            elif line.startswith(b"MSG"):
                return json.loads(self.file.read(int(line.split()[-1]) + 2))

    def write(self, number):
        header = b"NATS/1.0\r\nNats-Expected-Last-Sequence: %d\r\n\r\n" % (number - 1)
        answer = self.ask(b"n", filler(number).encode(), header)
        is_there = "wrong last sequence: %d" % number in answer.get("error", {}).get("description", "")
        assert answer.get("seq") == number or is_there, answer

    def numbers(self, first):
        state = self.ask(b"$JS.API.STREAM.INFO.N")["state"]
        for number in range(first, state["last_seq"] + 1):
            found = self.ask(b"$JS.API.STREAM.MSG.GET.N", b'{"seq":%d}' % number)
            yield number, base64.b64decode(found["message"].get("data", "")).decode()

    def shorten(self, last):
        assert self.ask(b"$JS.API.STREAM.PURGE.N", b'{"seq":%d}' % (last + 1)).get("success")

    def ping(self):
        answer = self.ask(b"$JS.API.STREAM.CREATE.N", b'{"name":"N","subjects":["n"],"storage":"file"}')
        assert "config" in answer, answer


class Etcd:
    # gRPC: HTTP/2 with uncompressed headers, one call at a time. Answers are judged by their data.
    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port))
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.stream.makefile("rb")
        window = (0x7FFF0000).to_bytes(4, "big")
        self.stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"\0\4" + window) + frame(8, 0, 0, window))
        self.id = -1

    def call(self, method, message):
        self.id += 2
        texts = [b"/etcdserverpb.KV/" + method, b"localhost", b"content-type", b"application/grpc", b"te", b"trailers"]
        path, host, *more = [bytes([len(text)]) + text for text in texts]
        headers = b"\x83\x86\x04" + path + b"\x01" + host + b"\0" + more[0] + more[1] + b"\0" + more[2] + more[3]
        data = b"\0" + len(message).to_bytes(4, "big") + message
        self.stream.sendall(frame(1, 4, self.id, headers) + frame(0, 1, self.id, data))
        answer = b""
        while True:
            head = self.file.read(9)
            assert len(head) == 9, "the connection is closed"
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            payload = self.file.read(length)
            # A stream that ended may be reset without an error, code zero, when its end was read late.
            assert kind != 7 and (kind != 3 or not any(payload)), f"{method} was refused: {payload}"
            if kind == 0:
                answer += payload
                # Later answers need as much of the connection's window as was there.
                if payload:
                    self.stream.sendall(frame(8, 0, 0, len(payload).to_bytes(4, "big")))
            if kind in (4, 6) and not flags & 1:
                self.stream.sendall(frame(kind, 1, 0, payload if kind == 6 else b""))
            if flags & 1 and kind in (0, 1) and int.from_bytes(head[5:], "big") == self.id:
                assert len(answer) >= 5, f"{method} failed"
                return answer[5:]

    def write(self, number):
        # Created unless it is there: kine knows no other way.
        compare = b"\x10\x02" + field(3, key(number)) + b"\x30\x00"
        put = field(1, key(number)) + field(2, filler(number).encode())
        self.call(b"Txn", field(1, compare) + field(2, field(2, put)))

    def numbers(self, first):
        # What follows the key before. kine takes the zero byte off, and begins behind that key.
        page = key(first - 1) + b"\0"
        while page:
            answer = dict_of(self.call(b"Range", field(1, page) + field(2, b"/n0") + b"\x18" + varint(500)))
            page = None
            for pair in answer.get(2, []):
                pair = dict_of(pair)
                page = pair[1][0] + b"\0"
                yield int(pair[1][0][3:]), pair.get(5, [b""])[0].decode()

    def shorten(self, last):
        pass

    def ping(self):
        self.call(b"Range", field(1, key(0)) + field(2, b"/n0") + b"\x18\x01")


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def varint(value):
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def dict_of(message):
    # The fields of a message, each a list.
    fields, place = {}, 0

    def number():
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place, value, shift = place + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while place < len(message):
        tag, value = number(), number()
        if tag & 7 == 2:
            value, place = message[place:place + value], place + value
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def key(number):
    return b"/n/%012d" % number


def filler(number):
    return "x" * (number % 900)


kind, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
server = {"redis": Redis, "jetstream": Jetstream, "etcd": Etcd, "kine": Etcd}[kind](port)
number = int(sys.argv[4]) if len(sys.argv) > 4 else 0
if what == "ping":
    server.ping()
elif what == "shorten":
    server.shorten(number)
elif what == "check":
    last = number - 1
    for found, value in server.numbers(number):
        assert found == last + 1, f"number {found} comes where {last + 1} was"
        assert value == filler(found), f"number {found} has not what was put"
        last = found
    print(last)
else:
    while True:
        number += 1
        server.write(number)
        print(number, flush=True)
