"""A browser for tests: reads calls of the DevTools protocol from standard input, a line each, and prints the
results. Speaks to the browser over a pipe, so that no port is open. Ends with its input, and the browser too."""

import base64
import fcntl
import json
import os
import subprocess
import sys

PROGRAM, PROFILE = sys.argv[1:3]
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe",
    "--user-data-dir=" + PROFILE, "about:blank",
]


def high(pair):
    """Both ends with numbers that cannot be the browser's own."""
    return [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 50) for end in pair]


their_input, our_output = high(os.pipe())
our_input, their_output = high(os.pipe())


def descriptors():
    os.dup2(their_input, 3)
    os.dup2(their_output, 4)


browser = subprocess.Popen([PROGRAM, *FLAGS], preexec_fn=descriptors, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.close(their_input)
os.close(their_output)
sending = os.fdopen(our_output, "wb", buffering=0)
receiving = os.fdopen(our_input, "rb")
problems, session, number = [], None, 0


def message():
    text = bytearray()
    while (byte := receiving.read(1)) not in (b"\0", b""):
        text += byte
    if not byte:
        sys.exit("the browser has ended")
    return json.loads(text)


def call(method, params):
    global number
    number += 1
    asked = {"id": number, "method": method, "params": params}
    if session:
        asked["sessionId"] = session
    sending.write(json.dumps(asked).encode() + b"\0")
    while True:
        heard = message()
        if heard.get("id") == number:
            return heard.get("result", {"error": heard.get("error")})
        if heard.get("method") == "Runtime.exceptionThrown":
            problems.append(heard["params"]["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        entry = heard.get("params", {}).get("entry", {}) if heard.get("method") == "Log.entryAdded" else {}
        if entry.get("level") == "error" and entry.get("source") != "network":
            problems.append(entry.get("text"))


target = call("Target.createTarget", {"url": "about:blank"})["targetId"]
session = call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
for domain in ("Page", "Runtime", "Log"):
    call(domain + ".enable", {})
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "problems":
        result = {"problems": problems}
    elif asked["method"] == "picture":
        taken = call("Page.captureScreenshot", {"captureBeyondViewport": asked["whole"]})
        with open(asked["file"], "wb") as file:
            file.write(base64.b64decode(taken["data"]))
        result = {}
    else:
        result = call(asked["method"], asked["params"])
    print(json.dumps(result), flush=True)
browser.kill()
browser.wait()
