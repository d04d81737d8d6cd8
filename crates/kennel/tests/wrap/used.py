# Prints the command of the server called "used", as a JSON list.
import json, re, sys

kind, path = sys.argv[1:]
text = open(path, encoding="utf-8", newline="").read()


def strip(text):
    """JSON without comments and trailing commas."""
    token = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[}\]])', re.S)
    return token.sub(lambda m: m.group(0) if m.group(0).startswith('"') else "", text)


def from_json(text):
    document = json.loads(strip(text))
    tables = [document.get(k) for k in ("mcpServers", "servers", "context_servers", "mcp")]
    tables.append((document.get("mcp") or {}).get("servers"))
    used = next(t["used"] for t in tables if t and "used" in t)
    command = used["command"]
    return command if isinstance(command, list) else [command] + used["args"]


def from_yaml(text):
    lines = [l.rstrip("\r") for l in text.split("\n")]
    # The entry's lines: from the dash or name down to the next entry.
    at = next(i for i, l in enumerate(lines) if re.match(r"\s*(- name: used|used:)$", l))
    block = [lines[at]]
    deep = len(lines[at]) - len(lines[at].lstrip())
    for line in lines[at + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= deep:
            break
        block.append(line)
    value = lambda key: next(l.split(":", 1)[1].strip() for l in block if re.match(rf"\s*(- )?{key}:", l))
    unquote = lambda word: json.loads(word) if word.startswith('"') else word
    command = unquote(value("command") if any("command:" in l for l in block) else value("cmd"))
    inside = value("args")[1:-1]
    words = re.findall(r'"(?:\\.|[^"\\])*"|[^,\s]+', inside)
    return [command] + [unquote(w) for w in words]


print(json.dumps(from_json(text) if kind == "json" else from_yaml(text)))
