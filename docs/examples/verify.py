#!/usr/bin/env python3
"""Verifies an export of a ledger, written from docs/LEDGER.md alone, with nothing but Python itself and
the two files beside it.

    verify.py EXPORT [--key VKEY] [--against CHECKPOINT]... [--allow-unsigned]

Prints every fault as `line N: code, event SEQ: detail`, then one line that says what was read. Exit
status 0 where there was no fault, 1 where there was one. It checks payloads, links, tree, proofs,
signatures, the hand-over of keys and the form of each line. What blobs hold, and the names and budgets
that events speak of, are for the verifier of the project to check.
"""
import argparse, base64, hashlib, json, re, sys

from blake3_ed25519 import derive_key, signed_by
from export_line import FIELDS, OtherForm, is_written_so, parse

def b64(text):
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("not the one form of base64")
    return data


def parse_vkey(text):
    name, key_id, key = text.split("+", 2)
    key = b64(key)
    right = hashlib.sha256(name.encode() + b"\n" + key).digest()[:4].hex()
    if key[:1] != b"\x01" or len(key) != 33 or key_id != right or not name:
        raise ValueError("not a verifier key")
    return name, bytes.fromhex(key_id), key[1:]


def parse_note(note):
    """The text, what it says, and the signatures under it."""
    text, signatures = note[:note.rindex("\n\n") + 1], note[note.rindex("\n\n") + 2:]
    origin, size, root, rest = text.split("\n")
    if rest or not origin or str(int(size)) != size or len(b64(root)) != 32 or (signatures and signatures[-1] != "\n"):
        raise ValueError("not a checkpoint")
    found = []
    for line in signatures.split("\n")[:-1]:
        dash, name, data = line.split(" ")
        if dash != "\u2014" or len(b64(data)) < 5:
            raise ValueError("not a signature")
        found.append((name, b64(data)[:4], b64(data)[4:]))
    return text, origin, int(size), b64(root), found


def verdict(vkey, text, signatures):
    name, key_id, public = parse_vkey(vkey)
    mine = [s for n, i, s in signatures if (n, i) == (name, key_id)]
    good = all(signed_by(public, text.encode(), s) for s in mine)
    return "unsigned" if not mine else "signed" if good else "forged"


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def root_of(parts):
    """The root over complete parts, each a pair of its size and its root, the largest first."""
    root = parts[-1][1] if parts else sha()
    for _, left in reversed(parts[:-1]):
        root = sha(b"\1", left, root)
    return root


def path_length(index, size):
    inner = (index ^ size - 1).bit_length()
    return inner + bin(index >> inner).count("1")


def root_of_path(leaf, index, size, path):
    node, last = leaf, size - 1
    for sibling in path:
        if index & 1 or index == last:
            node = sha(b"\1", sibling, node)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            node = sha(b"\1", node, sibling)
        index, last = index >> 1, last >> 1
    return node


def text(value):
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def uuid(value):
    return bytes.fromhex(value.replace("-", "")) if value else bytes(16)


def nanoseconds(time):
    from datetime import datetime, timezone
    seconds = datetime.strptime(time[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    return int(seconds) * 10**9 + int(time[20:29])


def header(e):
    n = lambda value, size: value.to_bytes(size, "big")
    return b"".join((b"\1", n(e["seq"], 8), text(e["stream"]), n(e["version"], 8), uuid(e["event_id"]),
                     text(e["kind"]), n(e["schema"], 2), n(nanoseconds(e["recorded_at"]), 8), text(e["actor"]),
                     uuid(e["command_id"]), uuid(e["causation_id"]), uuid(e["correlation_id"]),
                     n(e["payload_bytes"], 4), bytes.fromhex(e["payload_commitment"])))


class Verifier:
    def __init__(self):
        self.faults, self.line, self.seq, self.ledger, self.last, self.end = [], 0, None, None, None, None
        self.versions, self.keys, self.parts, self.size, self.broken = {}, [], [], 0, False
        self.roots, self.signed, self.path, self.pending, self.events, self.seen = {}, {}, [], None, 0, set()
        self.erased = {}

    def fault(self, code, detail=""):
        self.faults.append((self.line, code, self.seq, detail))

    def take(self, raw):
        self.line, self.seq = self.line + 1, None
        if self.end is not None:
            self.fault("after_end")
        if not raw.endswith(b"\n"):
            self.fault("truncated", "the file ends within a line")
        try:
            line, in_order = parse(raw)
            kind = line["type"]
            if kind in FIELDS and not (in_order and is_written_so(line, raw)):
                raise OtherForm
            if self.line == 1 and kind != "ledger":
                self.fault("header_missing")
            if self.ledger is None and kind != "ledger":
                return  # Nothing can be said of events without knowing whose they are.
            if kind != "proof" and self.pending:
                self.seq, self.pending = self.pending["seq"], None
                self.fault("proof_missing")
            if kind not in ("ledger", "event", "proof", "blob", "end"):
                self.fault("unknown_line")
            elif kind != "blob":
                getattr(self, "take_" + kind)(line, raw)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            self.unread("malformed_line", repr(e))
        except OtherForm:
            self.unread("line_form")

    def unread(self, code, detail=""):
        if self.line == 1:
            self.fault("header_missing")
        self.fault(code, detail)

    def take_ledger(self, line, _):
        data = uuid(line["ledger_id"]) + text(line["origin"])
        data += nanoseconds(line["created_at"]).to_bytes(8, "big") + text(line["vkey"])
        genesis = derive_key("fluxvm ledger v1 genesis", data)
        if genesis.hex() != line["genesis"]:
            self.fault("genesis_hash")
        if line["format"] not in (1, 2):
            self.fault("format_unknown")
        if self.ledger:
            return self.fault("header_repeated" if line == self.ledger[0] else "header_foreign")
        self.ledger, self.keys = (line, genesis), [(0, line["vkey"])]
        self.whole, self.tree = line["scope"] == "whole ledger", line.get("tree_size")
        self.roots[0] = sha()

    def take_event(self, e, raw):
        self.seq, self.events = e["seq"], self.events + 1
        rotation = (e["stream"], e["kind"]) == ("ledger", "ledger.key_rotated")
        if not e.get("redacted"):
            # The payload is what stands between these two in the line, byte for byte.
            payload = raw[raw.index(b',"payload":') + 11:raw.rindex(b',"salt":"')]
            if len(payload) != e["payload_bytes"]:
                self.fault("payload_length")
            commitment = derive_key("fluxvm ledger v1 payload", bytes.fromhex(e["salt"]) + payload)
            if commitment.hex() != e["payload_commitment"]:
                self.fault("payload_commitment")
        if derive_key("fluxvm ledger v1 event", bytes.fromhex(e["prev"]) + header(e)).hex() != e["hash"]:
            self.fault("redacted_hash" if e.get("redacted") else "event_hash")
        guest = not self.whole and self.tree is not None and rotation and e["stream"] != self.ledger[0]["scope"]
        if not self.whole and not guest and e["stream"] != self.ledger[0]["scope"]:
            self.fault("stream_foreign")
        expected = self.last["seq"] + 1 if self.last else 1
        if e["seq"] < expected:
            return self.fault("event_repeated" if e["seq"] in self.seen else "seq_order")
        self.seen.add(e["seq"])
        if e["seq"] > expected and self.whole:
            self.fault("seq_gap")
        if e["seq"] == 1 and e["prev"] != self.ledger[1].hex():
            self.fault("genesis_link")
        if self.last and e["seq"] == expected and e["prev"] != self.last["hash"]:
            self.fault("link_broken")
        if self.last and e["recorded_at"] < self.last["recorded_at"]:
            self.fault("time_backwards")
        if not guest:
            version = self.versions.get(e["stream"], 0) + 1
            if e["version"] != version:
                self.fault("version_gap" if e["version"] > version else "version_repeated")
            self.versions[e["stream"]] = max(e["version"], version - 1)
        if self.tree is not None and e["seq"] > self.tree:
            self.fault("event_unsigned")
        elif self.tree is not None and not self.whole:
            self.pending = e
        self.broken |= self.size + 1 != e["seq"]
        if rotation:
            self.rotate(e)
        if not self.broken:
            self.parts.append((1, sha(b"\0", bytes.fromhex(e["hash"]))))
            while len(self.parts) > 1 and self.parts[-1][0] == self.parts[-2][0]:
                (n, right), (_, left) = self.parts.pop(), self.parts.pop()
                self.parts.append((2 * n, sha(b"\1", left, right)))
            self.size += 1
            if self.size in self.wanted or self.size == self.tree:
                self.roots[self.size] = root_of(self.parts)
        self.last = e
        if e.get("redacted"):
            self.erased[e["seq"]] = self.line, e
        elif self.erased and e["kind"] in ("ledger.redacted", "ledger.shredded", "idempotency.erased"):
            for seq in self.ordered(e, e["payload"]):
                self.erased.pop(seq, None)

    def ordered(self, order, payload):
        """The erased events before this one that it orders to be erased."""
        erased, own = [e for _, e in self.erased.values()], order["stream"]
        try:
            if order["kind"] == "idempotency.erased":
                return [e["seq"] for e in erased if e["stream"] == own and e["seq"] == payload["seq"]]
            if own != "ledger":
                return []
            if order["kind"] == "ledger.redacted":
                return list(payload["seqs"])
            said = [e for e in erased if e["stream"] == "session/" + payload["session"]]
            answers = [e for e in erased if e["kind"] == "idempotency.answered"]
            own = {e["correlation_id"] for e in said}
            others = {e["correlation_id"] for e in erased
                      if e["kind"] != "idempotency.answered" and e["stream"] != "session/" + payload["session"]}
            return [e["seq"] for e in said + answers if e["correlation_id"] in own or e["correlation_id"] not in others]
        except (TypeError, KeyError):
            return []

    def rotate(self, e):
        old = self.keys[-1][1]
        try:
            p = e["payload"]
            if set(p) != {"checkpoint", "new_vkey", "old_vkey", "signature"} or e["schema"] != 1:
                raise ValueError
            if p["old_vkey"] != old:
                return self.fault("rotation_key")
            new = parse_vkey(p["new_vkey"])
            if new[0] != self.ledger[0]["origin"] or p["new_vkey"] == old:
                raise ValueError
            message = f"fluxvm ledger v1 rotation\n{self.ledger[0]['ledger_id']}\n{p['new_vkey']}\n"
        except (ValueError, TypeError):
            return self.fault("rotation_form")
        try:
            if not signed_by(parse_vkey(old)[2], message.encode(), b64(p["signature"])):
                return self.fault("rotation_signature")
        except ValueError:
            return self.fault("rotation_signature")
        try:
            note, origin, size, root, signatures = parse_note(p["checkpoint"])
            if origin != new[0] or size != e["seq"] - 1 or verdict(old, note, signatures) != "signed":
                raise ValueError
        except ValueError:
            return self.fault("rotation_seal")
        self.keys.append((e["seq"], p["new_vkey"]))
        if not self.forked(size, root) and not self.broken and root_of(self.parts) != root:
            self.fault("history_rewritten")

    def take_proof(self, line, _):
        e, self.pending = self.pending, None
        if e is None:
            return self.fault("proof_foreign")
        self.seq = e["seq"]
        if line["seq"] != e["seq"]:
            return self.fault("proof_foreign")
        given, length = [bytes.fromhex(h) for h in line["path"]], path_length(e["seq"] - 1, self.tree)
        shared = length - len(given)
        if shared < 0 or shared > len(self.path) or len(given) and len(self.path) > shared >= 0 \
                and given[-1] == self.path[len(self.path) - shared - 1]:
            return self.fault("proof_form")
        self.path = given + self.path[len(self.path) - shared:]
        leaf = sha(b"\0", bytes.fromhex(e["hash"]))
        if root_of_path(leaf, e["seq"] - 1, self.tree, self.path).hex() != self.ledger[0]["tree_root"]:
            self.fault("proof_invalid")

    def take_end(self, line, _):
        self.end = line
        if line["events"] != self.events:
            self.fault("end_count")
        head = (self.last["seq"], self.last["hash"]) if self.last else (None, self.ledger and self.ledger[1].hex())
        if (line["head_seq"], line["head_hash"]) != head:
            self.fault("end_head")
        note, tree = line.get("checkpoint"), self.ledger and self.tree
        if note is None:
            if self.ledger and (tree is not None or self.key):
                self.fault("checkpoint_missing")
            elif self.ledger and not self.unsigned:
                self.fault("unsigned", "nobody signed for it")
            return
        read = self.read(note)
        if not read:
            return
        body, size, root, signatures = read
        if size != tree:
            self.fault("checkpoint_size")
        elif root.hex() != self.ledger[0]["tree_root"]:
            self.fault("checkpoint_root")
        if self.whole and not self.broken:
            if tree not in self.roots:
                self.fault("checkpoint_beyond")
            elif self.roots[tree].hex() != self.ledger[0]["tree_root"]:
                self.fault("tree_root")
        if self.judge(body, size, signatures):
            self.forked(size, root)

    def read(self, note):
        try:
            body, origin, size, root, signatures = parse_note(note)
        except ValueError:
            return self.fault("checkpoint_form")
        if origin != self.ledger[0]["origin"]:
            return self.fault("checkpoint_origin")
        return body, size, root, signatures

    def judge(self, body, size, signatures):
        try:
            all_keys = [(start, verdict(key, body, signatures)) for start, key in self.keys]
        except ValueError:
            return self.fault("key_form")
        own = [v for start, v in all_keys if start <= size][-1]
        other = any(v == "signed" for _, v in all_keys)
        if own != "signed":
            self.fault("checkpoint_signature" if own == "forged" else "checkpoint_key" if other else "checkpoint_unsigned")
        return own == "signed"

    def forked(self, size, root):
        if self.signed.setdefault(size, root) != root:
            self.fault("checkpoint_fork")
            return True

    def hold(self, note):
        read = self.read(note) if self.ledger else None
        if not read or not self.judge(read[0], read[1], read[3]) or self.forked(read[1], read[2]):
            return
        _, size, root, _ = read
        if not self.whole:
            if self.tree != size:
                self.fault("against_unproven")
            elif root.hex() != self.ledger[0]["tree_root"]:
                self.fault("history_rewritten")
        elif size in self.roots:
            if self.roots[size] != root:
                self.fault("history_rewritten")
        elif not self.broken or (self.last["seq"] if self.last else 0) < size:
            self.fault("tail_missing")


def verify(lines, key=None, against=(), unsigned=False):
    v = Verifier()
    v.key, v.unsigned, v.wanted = key, unsigned, {int(n.split("\n")[1]) for n in against if re.match(r"[^\n]+\n\d+\n", n)}
    for raw in lines:
        v.take(raw)
    v.line, v.seq = v.line + 1, None
    if v.line == 1:
        v.fault("header_missing", "the file is empty")
    if v.pending:
        v.fault("proof_missing")
    if v.end is None:
        v.fault("truncated", "there is no last line")
    for v.seq, (line, _) in v.erased.items() if v.ledger and v.whole else ():
        v.faults.append((line, "redaction_unordered", v.seq, "it is erased, and no event orders that"))
    v.seq = None
    for note in against:
        v.hold(note)
    if key and key not in [k for _, k in v.keys]:
        v.fault("key_unexpected")
    return v


def main(arguments):
    parser = argparse.ArgumentParser(description="Verifies an export of a ledger.")
    parser.add_argument("export")
    parser.add_argument("--key", help="a key that must have spoken for the ledger")
    parser.add_argument("--against", action="append", default=[], help="a file with a checkpoint kept elsewhere")
    parser.add_argument("--allow-unsigned", action="store_true", help="take an export that nobody signed")
    asked = parser.parse_args(arguments)
    against = [open(path, encoding="utf-8", newline="").read() for path in asked.against]
    with open(asked.export, "rb") as file:
        if file.peek(4)[:4] == b"\x28\xb5\x2f\xfd":
            print(f"{asked.export} is compressed: run `zstd -d` on it first", file=sys.stderr)
            return 2
        v = verify(file, asked.key, against, asked.allow_unsigned)
    for line, code, seq, detail in v.faults:
        print(f"line {line}: {code}" + (f", event {seq}" if seq else "") + (f": {detail}" if detail else ""))
    print(f"{v.events} events, {len(v.faults)} faults")
    if not v.faults and v.tree is None:
        print("UNSIGNED: nothing binds this to the ledger")
    return 1 if v.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
