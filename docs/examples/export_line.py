"""The form of each line of an export, for verify.py: which fields it has, and the one way of writing them."""
import json, re

# What each line holds, in this order: a name, then what kind of value, `?` where the field can be missing.
FIELDS = {
    "ledger": "type:text format:number ledger_id:uuid origin:text created_at:time vkey:text scope:text genesis:hash"
              " tree_size:number? tree_root:hash? content:true?",
    "event": "type:text seq:number stream:stream version:number event_id:uuid kind:kind schema:number"
             " recorded_at:time actor:text command_id:uuid causation_id:uuid|null correlation_id:uuid"
             " payload_bytes:number payload_commitment:hash payload:any salt:hash|null redacted:true? prev:hash hash:hash",
    "proof": "type:text seq:number path:hashes",
    "blob": "type:text digest:hash bytes:number offset:number content:text",
    "end": "type:text events:number head_seq:number|null head_hash:hash checkpoint:text?",
}
PATTERNS = {
    "text": "(?s).*", "hash": "[0-9a-f]{64}", "stream": "[a-z]+(/[A-Za-z0-9._-]{1,128})?", "kind": "[a-z0-9_.]{1,64}",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "time": "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{9}Z",
}


class OtherForm(Exception):
    """A line says something readable in another form than the writer's."""


def fits(kind, value):
    if kind.endswith("|null"):
        return value is None or fits(kind[:-5], value)
    if kind == "hashes":
        return type(value) is list and all(fits("hash", each) for each in value)
    if kind in PATTERNS:
        return type(value) is str and re.fullmatch(PATTERNS[kind], value) is not None
    # Not `==`: to Python, true is 1.
    return kind == "any" or (value is True if kind == "true" else type(value) is int and value >= 0)


def once(pairs):
    """An object in which a name stands twice says different things to different readers."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def no(literal):
    raise ValueError(f"{literal} is no integer")


def parse(raw):
    """A line, which must have the fields of its type, each once and of its kind."""
    line = json.loads(raw, object_pairs_hook=once, parse_float=no, parse_constant=no)
    fields = [field.split(":") for field in FIELDS.get(line["type"], "").split()]
    names = [name for name, _ in fields]
    if any(name not in names for name in line) and fields:
        raise ValueError("a field that there is not")
    for name, kind in fields:
        if name not in line and kind[-1] == "?":
            continue
        if not fits(kind.rstrip("?"), line[name]):
            raise ValueError(f"{name} is not a {kind}")
    erased = "redacted" in line
    if line["type"] == "event" and (erased != (line["salt"] is None) or erased and line["payload"] is not None):
        raise ValueError("neither a payload nor a redaction")
    if line["type"] == "ledger" and not (line["format"] == 2) == ("tree_size" in line) == ("tree_root" in line):
        raise ValueError("a state of the tree belongs to format 2 and only to it")
    return line, list(line) == [name for name in names if name in line] or not fields


def is_written_so(line, raw):
    """Whether this is the one form of the line: no white space, and no character written in another way."""
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() == raw.rstrip(b"\n")
