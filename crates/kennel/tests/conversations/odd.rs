//! Lines as no serializer writes them.

use std::io::Write;
use std::process::{Command, Stdio};

use kennel_testkit::Scope;

use crate::servers::obedient;
use crate::ways::sounds_the_same;

const ODD: [&str; 5] = [
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"0"}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    r#"{ "id" : "sträng-😀", "method":"echo" ,"jsonrpc":"2.0","params":{"n":1.0e2,"e":"\u00e4\/","z":{"b":1,"a":2}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"slow","params":{"ms":300}}"#,
    r#"{"jsonrpc":"2.0","id":"1","method":"echo","params":[]}"#,
];

#[test]
fn rule_11_what_the_app_hears_is_what_the_server_said_to_the_byte() {
    let scope = Scope::new("bytes");
    let heard = sounds_the_same(&scope, &obedient(), hear);
    assert_eq!(heard.len(), 4, "{heard:?}");
}

/// All of its stdout, with the ends of its lines; a quiet run says nothing on stderr.
fn hear(mut command: Command) -> Vec<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(ODD.join("\n").as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_inclusive('\n').map(str::to_owned).collect()
}
