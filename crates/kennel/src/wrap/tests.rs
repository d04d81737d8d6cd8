//! Tests the editors with random documents: wrapping and unwrapping gives the same bytes, and nothing else changes its
//! meaning.

mod yaml;

use std::path::Path;

use kennel_testkit::{Rng, count};
use serde_json::{Map, Value, json};

use super::clients::Shape;
use super::entry::{Args, Start, apply};
use super::shapes::Root;
use super::splice::{self, Prefix};
use super::yaml::Kind;

const KENNEL: &str = "/usr/local/bin/kennel";

fn prefix() -> Prefix {
    Prefix::new(
        KENNEL,
        Some("/home/a b"),
        &["TOKEN".to_owned(), "X".to_owned()],
    )
}

/// Wraps every server of a text.
fn wrapped(text: &str, shape: Shape) -> String {
    let entries = shape
        .entries(text)
        .unwrap_or_else(|error| panic!("{error} in\n{text}"));
    let edits = entries
        .iter()
        .flat_map(|entry| splice::wrap(text, entry, &prefix()));
    apply(text, &edits.collect::<Vec<_>>())
}

/// Unwraps every server of a text, given the text before.
fn unwrapped(text: &str, shape: Shape, before: &str) -> String {
    let had_none: Vec<bool> = shape
        .entries(before)
        .unwrap()
        .iter()
        .map(|entry| {
            matches!(
                &entry.start,
                Start::Separate {
                    args: Args::Missing { .. },
                    ..
                }
            )
        })
        .collect();
    let entries = shape
        .entries(text)
        .unwrap_or_else(|error| panic!("{error} in\n{text}"));
    assert_eq!(entries.len(), had_none.len());
    let edits = entries.iter().zip(had_none).flat_map(|(entry, added)| {
        let behind = entry.command().as_deref().and_then(splice::kennel_prefix);
        behind.map_or_else(Vec::new, |behind| {
            assert!(!behind.own_options);
            splice::unwrap(text, entry, &behind, added)
        })
    });
    apply(text, &edits.collect::<Vec<_>>())
}

/// Writes JSON with random notation.
struct Writer<'a> {
    rng: &'a mut Rng,
    eol: &'static str,
    text: String,
}

impl Writer<'_> {
    fn trivia(&mut self) {
        for _ in 0..self.rng.below(3) {
            let piece = match self.rng.below(8) {
                0 => "\t".to_owned(),
                1 => format!("// a \"comment\": {{[,{}", self.eol),
                2 => "/* one, \"two\" ] */".to_owned(),
                3 | 4 => self.eol.to_owned(),
                _ => "  ".to_owned(),
            };
            self.text += &piece;
        }
    }

    fn string(&mut self, value: &str) {
        let escaped = self.rng.below(3) == 0;
        let mut literal = serde_json::to_string(value).unwrap();
        if escaped {
            literal = literal.replace('/', "\\/").replace('e', "\\u0065");
        }
        self.text += &literal;
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                self.text.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.trivia();
                    self.value(item);
                    self.trivia();
                    self.separator(at + 1 == items.len());
                }
                self.trivia();
                self.text.push(']');
            }
            Value::Object(members) => {
                self.text.push('{');
                for (at, (key, item)) in members.iter().enumerate() {
                    self.trivia();
                    self.string(key);
                    self.trivia();
                    self.text.push(':');
                    self.trivia();
                    self.value(item);
                    self.trivia();
                    self.separator(at + 1 == members.len());
                }
                self.trivia();
                self.text.push('}');
            }
            plain => self.text += &plain.to_string(),
        }
    }

    fn separator(&mut self, last: bool) {
        if !last || self.rng.below(4) == 0 {
            self.text.push(',');
        }
    }
}

fn random_server(rng: &mut Rng) -> Value {
    let words = [
        "-y",
        "@x/y",
        "--flag=[{\"a\"}]",
        "über \\ \"q\"",
        "// no",
        "${env:HOME}/e",
    ];
    let word = |rng: &mut Rng| json!(words[rng.below(words.len() as u64) as usize]);
    let mut server: Vec<(&str, Value)> = vec![("command", json!("npx"))];
    if rng.below(4) > 0 {
        let args: Vec<Value> = (0..rng.below(4)).map(|_| word(rng)).collect();
        server.push(("args", json!(args)));
    }
    if rng.below(2) == 0 {
        server.push(("env", json!({"TOKEN": word(rng), "X": "1"})));
    }
    if rng.below(3) == 0 {
        server.push((
            "unknown",
            json!({"command": "not this", "list": [1, null, true, -2.5e3]}),
        ));
    }
    if rng.below(6) == 0 {
        server = vec![
            ("url", json!("https://example.com/mcp")),
            ("command", json!(null)),
        ];
    }
    // In random order.
    for at in (1..server.len()).rev() {
        server.swap(at, rng.below(at as u64 + 1) as usize);
    }
    Value::Object(
        server
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    )
}

fn random_document(rng: &mut Rng) -> Value {
    let servers: Map<String, Value> = (0..rng.below(4))
        .map(|at| (format!("s {at}"), random_server(rng)))
        .collect();
    let mut document = Map::new();
    if rng.below(2) == 0 {
        document.insert("before".to_owned(), json!([{"command": "x", "args": []}]));
    }
    document.insert("mcpServers".to_owned(), Value::Object(servers));
    if rng.below(2) == 0 {
        let servers = json!({"p": random_server(rng)});
        document.insert(
            "projects".to_owned(),
            json!({"/a": {"mcpServers": servers, "more": 1}}),
        );
    }
    Value::Object(document)
}

/// The meaning of a text, by an independent parser.
fn meaning(text: &str) -> Value {
    let mut plain = String::new();
    let mut chars = text.trim_start_matches('\u{feff}').chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('"', _) => {
                plain.push('"');
                while let Some(inner) = chars.next() {
                    plain.push(inner);
                    match inner {
                        '\\' => plain.extend(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            ('/', Some('/')) => while chars.next().is_some_and(|c| c != '\n') {},
            ('/', Some('*')) => {
                let mut last = ' ';
                for c in chars.by_ref().skip(1) {
                    if last == '*' && c == '/' {
                        break;
                    }
                    last = c;
                }
            }
            ('}' | ']', _) => {
                if plain.trim_end().ends_with(',') {
                    plain.truncate(plain.trim_end().len() - 1);
                }
                plain.push(c);
            }
            _ => plain.push(c),
        }
    }
    serde_json::from_str(&plain).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

/// The meaning that a wrapped document must have.
fn expected(mut document: Value) -> Value {
    let wrap = |server: &mut Value| {
        let Some(command) = server["command"].as_str().map(str::to_owned) else {
            return;
        };
        let mut args: Vec<Value> = prefix().words.into_iter().map(Value::from).collect();
        args.push(json!(command));
        args.extend(server["args"].as_array().cloned().unwrap_or_default());
        server["command"] = json!(KENNEL);
        server["args"] = json!(args);
    };
    let servers = document["mcpServers"].as_object_mut().unwrap();
    servers.values_mut().for_each(wrap);
    if let Some(project) = document.pointer_mut("/projects/~1a/mcpServers/p") {
        wrap(project);
    }
    document
}

#[test]
fn json_there_and_back_is_the_identity_and_nothing_else_changes_its_meaning() {
    let mut rng = Rng::seeded("wrap json");
    for round in 0..count(20_000) {
        let document = random_document(&mut rng);
        let eol = ["\n", "\r\n"][rng.below(2) as usize];
        let text = if rng.below(4) == 0 { "\u{feff}" } else { "" }.to_owned();
        let mut writer = Writer {
            rng: &mut rng,
            eol,
            text,
        };
        writer.trivia();
        writer.value(&document);
        writer.trivia();
        let text = writer.text;
        assert_eq!(meaning(&text), document, "the writer, round {round}");

        let shape = Shape::Json(Root::McpServers);
        let wrapped = wrapped(&text, shape);
        assert_eq!(
            meaning(&wrapped),
            expected(document),
            "round {round}:\n{text}\n---\n{wrapped}"
        );
        assert_eq!(
            unwrapped(&wrapped, shape, &text),
            text,
            "round {round}:\n{text}\n---\n{wrapped}"
        );
    }
}

#[test]
fn toml_there_and_back_is_the_identity() {
    for text in [
        "[mcp_servers.a]\ncommand = \"npx\"\nargs = [\"-y\", 'x']\n",
        "[mcp_servers.a]\n  command = 'npx' # why\n[mcp_servers.a.env]\nT = \"1\"\n",
        "[mcp_servers.a]\r\nargs = [\r\n  \"-y\", # yes\r\n  'x',\r\n]\r\ncommand=\"npx\"\r\n",
        "\u{feff}mcp_servers.a = { command = \"npx\", args = [] }\nmcp_servers.b = {command=\"x\"}",
        "[mcp_servers]\na = { args = [ ], command = \"\"\"npx\"\"\" }\n[mcp_servers.b]\nurl = \"https://x\"",
        "[mcp_servers.a]\ncommand = \"npx\"",
        "# nothing\n",
    ] {
        for text in [
            text.to_owned(),
            text.replace("\r\n", "\n").replace('\n', "\r\n"),
        ] {
            let wrapped = wrapped(&text, Shape::Toml);
            let entries = Shape::Toml.entries(&wrapped).unwrap();
            for entry in entries.iter().filter_map(|entry| entry.command()) {
                assert_eq!(entry[..2], [KENNEL, "run"], "{wrapped}");
            }
            assert_eq!(unwrapped(&wrapped, Shape::Toml, &text), text, "{wrapped}");
        }
    }
}

#[test]
fn yaml_there_and_back_is_the_identity() {
    let extensions = "# mine\nGOOSE_MODE: auto\nextensions:\n  dev:\n    type: builtin\n    enabled: true\n  a:\n    type: stdio\n    cmd: npx # why\n    args:\n      - -y\n      # the package\n      - '@x/y'\n    envs: {}\n    env_keys:\n    - TOKEN\n  b:\n    cmd: \"uvx\"\n    args: [a, \"b, c\", 'd''e']\n  \"c d\":\n    cmd: thing\n    timeout: 3\n  r:\n    type: sse\n    uri: https://x\nlast: |\n  extensions:\n    no: 1\n";
    let listed = "name: x\nmcpServers:\n- name: A\n  command: npx\n  args:\n  - \"-y\"\n  - \"@x/y\"\n  env:\n    TOKEN: ${{ secrets.T }}\n-   command: 'a, b'\n    name: \"B\"\n    args: [] # none\n- name: C\n  url: https://x\nmodels: []\n";
    for (text, kind, count) in [
        (extensions, Kind::Extensions, 5),
        (listed, Kind::McpServers, 3),
    ] {
        for text in [
            text.to_owned(),
            text.replace('\n', "\r\n"),
            format!("\u{feff}{text}"),
        ] {
            let shape = Shape::Yaml(kind);
            let before = shape.entries(&text).unwrap();
            assert_eq!(before.len(), count);
            let wrapped = wrapped(&text, shape);
            let after = shape.entries(&wrapped).unwrap();
            for (before, after) in before.iter().zip(&after) {
                let Some(command) = before.command() else {
                    continue;
                };
                let wanted = [vec![KENNEL.to_owned()], prefix().words, command].concat();
                assert_eq!(after.command().unwrap(), wanted, "{wrapped}");
            }
            assert_eq!(unwrapped(&wrapped, shape, &text), text, "{wrapped}");
        }
    }
}

#[test]
fn a_wrapped_command_is_recognised_by_the_words_that_wrap_writes() {
    let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let behind = |line: &str| splice::kennel_prefix(&words(line));
    let plain = behind("/x/kennel run -- npx -y a").unwrap();
    assert_eq!((plain.server, plain.own_options), (3, false));
    let with = behind("kennel run --cwd /a --env-key A,B -- npx").unwrap();
    assert_eq!((with.server, with.own_options), (7, false));
    assert!(
        behind("kennel run --share always -- npx")
            .unwrap()
            .own_options
    );
    for line in [
        "npx -y a",
        "kennel ps",
        "kennel run --",
        "kennel run x",
        "kennels run -- x",
    ] {
        assert_eq!(behind(line), None, "{line}");
    }
}

#[test]
fn opencode_and_the_older_zed_are_wrapped_in_their_own_way() {
    for (text, root) in [
        (
            "{\"mcp\": {\"a\": {\"type\": \"local\", \"command\": [\"npx\", \"-y\"], \"environment\": {\"T\": \"1\"}}}}",
            Root::Mcp,
        ),
        (
            "{\"mcp\": {\"servers\": {\"a\": {\"type\": \"local\", \"command\": [\n  \"npx\"\n]}}}}",
            Root::Mcp,
        ),
        (
            "{\"mcp\": {\"servers\": {\"type\": \"local\", \"command\": [\"npx\"]}}}",
            Root::Mcp,
        ),
        (
            "{\"context_servers\": {\"a\": {\"command\": {\"path\": \"npx\", \"args\": [\"x\"]}}}}",
            Root::ContextServers,
        ),
        (
            "{\"context_servers\": {\"a\": {\"source\": \"custom\", \"command\": \"npx\", \"args\": []}}}",
            Root::ContextServers,
        ),
    ] {
        let shape = Shape::Json(root);
        let wrapped = wrapped(text, shape);
        let command = shape.entries(&wrapped).unwrap()[0].command().unwrap();
        assert_eq!(command[..2], [KENNEL, "run"], "{wrapped}");
        assert_eq!(command[7], "npx", "{wrapped}");
        assert_eq!(unwrapped(&wrapped, shape, text), text);
    }
}

#[test]
fn a_toml_command_whose_key_is_dotted_escaped_or_inline_is_wrapped_and_back() {
    for (text, args) in [
        (
            "mcp_servers.a.command = \"npx\"\n",
            "\nmcp_servers.a.args = [",
        ),
        (
            "mcp_servers . \"é x!\" . command = \"npx\" # c\r\n",
            " # c\r\nmcp_servers . \"é x!\" . args = [",
        ),
        ("[mcp_servers]\n  a.command = 'npx'", "\n  a.args = ["),
        (
            "[mcp_servers.a]\n\"comm\\u0061nd\" = \"npx\"\nx = 1\n",
            "\nargs = [",
        ),
        ("[mcp_servers]\nb = { command = \"npx\" }\n", ", args = ["),
        (
            "mcp_servers = { \"a b\".command = \"npx\", c = 1 }\n",
            ", \"a b\".args = [",
        ),
        (
            "mcp_servers = {\n  a = {\n    command = \"npx\", # c\n  },\n}\n",
            "\"/usr/local/bin/kennel\", args = [",
        ),
        // With a list that stays one.
        (
            "mcp_servers.a.command=\"npx\"\nmcp_servers.a.args=[\"x\"]\n",
            "args=[",
        ),
        (
            "mcp_servers.\"a/b\".command=\"npx\"\nmcp_servers.\"a/b\".\"\\u0061rgs\"=[]\n",
            "\"=[",
        ),
    ] {
        let with_kennel = wrapped(text, Shape::Toml);
        assert!(with_kennel.contains(args), "{with_kennel}");
        let entries = Shape::Toml.entries(&with_kennel).unwrap();
        let command = entries[0].command().unwrap();
        assert_eq!((entries.len(), command[0].as_str()), (1, KENNEL), "{text}");
        assert!(command.contains(&"npx".to_owned()), "{with_kennel}");
        assert_eq!(unwrapped(&with_kennel, Shape::Toml, text), text);
    }
}

#[test]
fn what_no_configuration_has_so_much_of_is_refused_before_it_takes_memory() {
    let json = Shape::Json(Root::McpServers);
    let list = |count: usize| format!("{{\"x\":[{}1]}}", "1,".repeat(count));
    for (text, shape, why) in [
        (list(2_000_000), json, "keys and values"),
        (
            format!("x = [{}]", "1,".repeat(1 << 20)),
            Shape::Toml,
            "more than 2 MB",
        ),
        (
            format!("x:\n{}", "- 1\n".repeat(1 << 19)),
            Shape::Yaml(Kind::Extensions),
            "more than 2 MB",
        ),
        (
            format!("{{\"mcpServers\":{{{}}}}}", {
                let servers = (0..=10_000).map(|at| format!("\"{at}\":{{}}"));
                servers.collect::<Vec<_>>().join(",")
            }),
            json,
            "servers",
        ),
    ] {
        let error = shape.entries(&text).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(json.entries(&list(100_000)).is_ok());
}
