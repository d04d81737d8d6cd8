use kennel_testkit::{Rng, count};
use serde_json::{Value, json};

use super::*;
use crate::sharing::ServersToml;
use crate::wrap::clients::Shape;
use crate::wrap::diff;
use crate::wrap::places::FoundConfig;
use crate::wrap::plan::{self, Setting};
use crate::wrap::shapes::Root;
use crate::wrap::yaml::Kind;

const PROGRAM: &str = "/home/ada/.local/bin/kennel";

#[test]
fn only_words_known_to_be_harmless_are_shown() {
    for (command, wanted) in [
        (
            "npx -y @scope/server-memory@1.2.3",
            "npx -y @scope/server-memory@1.2.3",
        ),
        (
            "uvx --from mcp-server-git==2026.10.19 mcp-server-git",
            "uvx --from mcp-server-git==2026.10.19 mcp-server-git",
        ),
        (
            "node /opt/app/node_modules/@x/y/dist/index.js",
            "node /opt/app/node_modules/@x/y/dist/index.js",
        ),
        (
            "mcp-server-git --repository /home/ada/src",
            "mcp-server-git --repository /home/ada/src",
        ),
        (
            "npx -y a --api-key hunter2 /data",
            "npx -y a --api-key … /data",
        ),
        // Credentials of variables are masked in commands as well.
        ("npx a --host ada/hunter@db", "npx a --host …"),
        (
            "npx a --mnemonic /hunter --store /data",
            "npx a --mnemonic … --store /data",
        ),
        (
            "npx a --token=hunter2 --port=80 --port 8080",
            "npx a --token=… --port=80 --port 8080",
        ),
        (
            "npx a --pass hunter2 --pat hunter2",
            "npx a --pass … --pat …",
        ),
        (
            "docker run -i --rm -e GITHUB_PAT=hunter2 mcp/github",
            "docker run -i --rm -e GITHUB_PAT=… mcp/github",
        ),
        (
            "npx server-postgres postgresql://ada:hunter2@db.example.com/x",
            "npx server-postgres postgresql://…@db.example.com/…",
        ),
        (
            "npx pkg postgresql://admin:hunter#two@db.example/x redis://:swordfish",
            "npx pkg … …",
        ),
        (
            "npx pkg mongodb://app:correct-horse/battery@db/x amqp://h:5672/v http://[::1]:80/x",
            "npx pkg … amqp://h:5672/… http://[::1]:80/…",
        ),
        (
            "npx mcp-remote https://mcp.example.com/sse",
            "npx mcp-remote https://mcp.example.com/…",
        ),
        ("env TOKEN=hunter2 npx a", "env TOKEN=… npx a"),
        ("mysql-mcp -phunter2", "mysql-mcp -p…"),
        ("thing hunter2", "thing …"),
        ("npx sk-live-a1b2c3", "npx …"),
        (
            "npx a ${HOME}/x ${env:KEY} ${K:-hunter2}",
            "npx a ${HOME}/x ${env:KEY} …",
        ),
        (
            "kennel run --cwd /home/ada --env-key TOKEN,LOG -- npx -y a",
            "kennel run --cwd /home/ada --env-key TOKEN,LOG -- npx -y a",
        ),
        (
            "kennel run --env-key TOKEN=hunter2 -- npx",
            "kennel run --env-key … -- npx",
        ),
        // The word after the launched package belongs to the server.
        ("python3 -m mod hunter", "python3 -m mod …"),
        ("uv run -m mod hunter", "uv run -m mod …"),
        ("uv run mod hunter", "uv run mod …"),
        ("node --inspect x.js hunter", "node --inspect … …"),
        ("node -e x hunter", "node -e … …"),
        ("npx -y mcp-server hunter", "npx -y mcp-server …"),
        ("uvx mcp hunter", "uvx mcp …"),
        ("npx a a@hunter", "npx a …"),
        ("npx -p a b@1 hunter", "npx -p a b@1 …"),
        (
            "node node_modules/a/x.js hunter",
            "node node_modules/a/x.js …",
        ),
        ("deno run -A npm:a@1 hunter", "deno run -A npm:a@1 …"),
        (
            "docker run -v /a:/b --privileged x hunter",
            "docker run -v … --privileged … …",
        ),
        (
            "docker run --name x mcp/a hunter",
            "docker run --name … mcp/a …",
        ),
        ("cmd /c npx a hunter", "cmd /c npx a …"),
        ("thing --env-key hunter", "thing --env-key …"),
        (
            "kennel run -- npx a --env-key hunter",
            "kennel run -- npx a --env-key …",
        ),
    ] {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        assert_eq!(shown(&command).join(" "), wanted);
    }
    let words = [
        "npx",
        "a",
        "--header",
        "Authorization: Bearer hunter2",
        "X-Key: hunter2",
    ]
    .map(str::to_owned);
    assert_eq!(
        shown(&words)[2..],
        ["--header", "Authorization: …", "X-Key: …"]
    );
    // What looks like a name in the value of an option may be the password itself.
    for (option, value) in [
        ("--password", "aHVudGVyMg=="),
        ("--password", "hunter=2"),
        ("--api-key", "swordfish: x"),
        ("--auth", "dXNlcjpwYXNz="),
        ("--sesame", "hunter=2"),
        ("--sesame", "hunter: 2"),
        ("-k", "aHVudGVyMg=="),
        ("-e", "hunter=2"),
        ("--url", "https://hunter.example.com/x"),
    ] {
        let words = ["npx", "a", option, value].map(str::to_owned);
        assert_eq!(shown(&words)[2..], [option, MASK], "{value}");
    }
    for (command, wanted) in [
        ("thing aHVudGVyMg==", "thing …"),
        ("thing hunter=", "thing …"),
        ("docker run -e aHVudGVyMg== img", "docker run -e … img"),
        ("npx a --password -hunter=2", "npx a --password -h…"),
    ] {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        assert_eq!(shown(&command).join(" "), wanted);
    }
    let words = ["sh", "-c", "/bin/thing --password hunter2"].map(str::to_owned);
    assert_eq!(shown(&words), ["sh", "-c", "…"]);
}

/// A new secret each time: a word, or a token in the style of one of several issuers.
fn canary(rng: &mut Rng) -> String {
    let letters = |rng: &mut Rng, from: &[u8], count: u64| -> String {
        (0..count)
            .map(|_| char::from(from[rng.below(from.len() as u64) as usize]))
            .collect()
    };
    match rng.below(7) {
        0 => "hunter".to_owned() + &letters(rng, b"0123456789", 3),
        1 => format!("ghp_{}", letters(rng, b"abcdefABCDEF0123456789", 36)),
        2 => letters(rng, b"0123456789abcdef", 32),
        3 => letters(rng, b"abcdefghijklmnopqrstuvwxyz", 9),
        4 => format!("sk-proj-{}", letters(rng, b"abcXYZ019_-", 20)),
        5 => letters(rng, b"ABCdefGHIjkl0123456789+/", 24) + "==",
        _ => letters(rng, b"abcdefgh", 8) + "=",
    }
}

/// The words of a command that contain the secret somewhere.
fn command(rng: &mut Rng, secret: &str) -> Vec<String> {
    let options = [
        "--api-key",
        "--token",
        "--pass",
        "--password",
        "--pat",
        "--secret",
        "--sesame",
        "--access",
        "-k",
        "-t0",
        "--auth",
        "--pw",
        "--openai",
        "--conn",
        "--key-file-content",
        "--bot",
        "-H",
        "--header",
    ];
    let mut one = |list: &[&str]| list[rng.below(list.len() as u64) as usize].to_owned();
    let (option, launcher) = (
        one(&options),
        one(&[
            "npx",
            "uvx",
            "node",
            "docker",
            "thing",
            "/opt/x/bin/thing",
            "kennel",
        ]),
    );
    let mut words = vec![launcher.clone()];
    if launcher == "kennel" {
        words.extend(["run", "--", "npx"].map(str::to_owned));
    }
    words.extend(["-y", "@scope/package"].map(str::to_owned));
    words.extend(match rng.below(13) {
        0 => vec![option, secret.to_owned()],
        1 => vec![format!("--{}={secret}", option.trim_start_matches('-'))],
        2 => vec!["-e".to_owned(), format!("GITHUB_PAT={secret}")],
        3 => vec![
            "--header".to_owned(),
            format!("Authorization: Bearer {secret}"),
        ],
        4 => vec![format!("postgresql://ada:{secret}@db.example.com/x")],
        5 => vec![format!("https://example.com/hooks/{secret}")],
        6 => vec![format!("https://example.com/?token={secret}")],
        7 => vec![format!("-p{secret}")],
        8 => vec!["serve".to_owned(), secret.to_owned()],
        9 => vec!["-c".to_owned(), format!("/bin/x --flag {secret}")],
        10 => vec![format!("Bearer {secret}")],
        11 => vec![format!("ada:{secret}@db.example.com")],
        _ => vec!["--config".to_owned(), format!("{{\"key\": \"{secret}\"}}")],
    });
    if rng.below(2) == 0 {
        words.extend(["--port", "8080", "/data"].map(str::to_owned));
    }
    words
}

/// One server in a file of each format, with the secret also outside of commands.
fn documents(name: &str, words: &[String], secret: &str) -> Vec<(Shape, String)> {
    let (program, args) = words.split_first().expect("a program");
    let entry = json!({"command": program, "args": args, "env": {"TOKEN": secret}, "headers": {"X": secret}});
    let json: Value = json!({"mcpServers": {name: entry}});
    let literal = |word: &str| serde_json::to_string(word).expect("a text");
    let list: Vec<String> = args.iter().map(|word| literal(word)).collect();
    let list = list.join(", ");
    let plain: Vec<String> = args.iter().map(|word| plain(word)).collect();
    let (flow, block) = (plain.join(", "), plain.join("\n      - "));
    let (name, program, token) = (literal(name), literal(program), literal(secret));
    vec![
        (Shape::Json(Root::McpServers), json.to_string()),
        (
            Shape::Json(Root::McpServers),
            format!("// {secret}\n{json:#}"),
        ),
        (
            Shape::Toml,
            format!(
                "[mcp_servers.{name}]\ncommand = {program} # {secret}\nargs = [{list}]\nenv = {{ T = {token} }}\n"
            ),
        ),
        (
            Shape::Yaml(Kind::Extensions),
            format!(
                "extensions:\n  {name}:\n    cmd: {program} # {secret}\n    args: [{list}]\n    envs:\n      T: {token}\n"
            ),
        ),
        (
            Shape::Yaml(Kind::Extensions),
            format!("extensions:\n  {name}:\n    cmd: {program}\n    args: [{flow}]\n"),
        ),
        (
            Shape::Yaml(Kind::Extensions),
            format!("extensions:\n  {name}:\n    cmd: {program}\n    args:\n      - {block}\n"),
        ),
        (
            Shape::Yaml(Kind::McpServers),
            format!("mcpServers:\n  - name: {name}\n    command: {program}\n    args: [{flow}]\n"),
        ),
        (
            Shape::Yaml(Kind::McpServers),
            format!(
                "mcpServers:\n  - name: {name}\n    command: {program}\n    args:\n      - {block}\n"
            ),
        ),
    ]
}

/// A word in YAML, without quotes if possible.
fn plain(word: &str) -> String {
    let begins = |c: char| c.is_ascii_alphanumeric() || "/-".contains(c);
    let special = |c: char| ",[]{}#\"'".contains(c);
    let is_plain = word.starts_with(begins)
        && !word.contains(special)
        && !word.contains(": ")
        && !word.ends_with(':');
    match is_plain {
        true => word.to_owned(),
        false => serde_json::to_string(word).expect("a text"),
    }
}

/// Everything that `wrap` would show of a file.
fn shown_of(text: &str, shape: Shape) -> String {
    let found = FoundConfig {
        client: None,
        path: "/home/ada/.config/goose/config.yaml".into(),
        shape: None,
        project: false,
    };
    let setting = Setting {
        program: PROGRAM,
        home: Path::new("/home/ada"),
        config: &ServersToml::default(),
    };
    let plan = plan::of(text, shape, &found, setting).unwrap_or_else(|error| panic!("{error}"));
    let entries = |text: &str| shape.entries(text).unwrap();
    diff::of(text, &entries(text), &entries(&plan.result))
}

#[test]
fn words_of_yaml_lists_without_quotes_are_masked() {
    let lists = [
        "[-y, x, --api-key, hunter2]",
        "[ -y, x , --api-key , hunter2 ] # hunter2",
        "\n      - -y\n      - x\n      - --api-key\n      - hunter2",
        "\n      - -y\n      - x # hunter2\n      - --api-key\n      - hunter2 # hunter2",
        "\n    - -y\n    - x\n    - --api-key\n    - hunter2",
    ];
    for list in lists {
        let goose = format!("extensions:\n  a:\n    cmd: npx\n    args: {list}\n");
        let of_continue = format!("mcpServers:\n  - name: a\n    command: npx\n    args: {list}\n");
        for (text, kind) in [(goose, Kind::Extensions), (of_continue, Kind::McpServers)] {
            let shown = shown_of(&text, Shape::Yaml(kind));
            assert!(!shown.contains("hunter2"), "{shown}of\n{text}");
            assert!(shown.contains("npx -y x --api-key …"), "{shown}of\n{text}");
        }
    }
}

#[test]
fn no_diff_shows_a_secret_and_every_diff_shows_the_servers_name() {
    let mut rng = Rng::seeded("secrets in configurations");
    let found = FoundConfig {
        client: None,
        path: "/home/ada/.cursor/mcp.json".into(),
        shape: None,
        project: false,
    };
    for _ in 0..count(5_000) {
        let secret = canary(&mut rng);
        let name =
            ["my-token-server", "key", "auth", "api-key vault", "secrets"][rng.below(5) as usize];
        let words = command(&mut rng, &secret);
        for (shape, text) in documents(name, &words, &secret) {
            let setting = Setting {
                program: PROGRAM,
                home: Path::new("/home/ada"),
                config: &ServersToml::default(),
            };
            let plan = plan::of(&text, shape, &found, setting)
                .unwrap_or_else(|error| panic!("{error}:\n{text}"));
            let (before, after) = (
                shape.entries(&text).unwrap(),
                shape.entries(&plan.result).unwrap(),
            );
            for (before, after) in [(&before, &after), (&after, &before)] {
                let shown = diff::of(&text, before, after);
                let bare = secret.trim_end_matches('=');
                assert!(!shown.contains(bare), "{secret} in\n{shown}of\n{text}");
                let changed = before[0].command() != after[0].command();
                assert!(!changed || shown.contains(name), "{shown}");
                assert!(changed || words[0] == "kennel", "nothing shown for\n{text}");
            }
        }
    }
}
