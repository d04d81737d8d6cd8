//! Odd lines as they arrive at a server, and its answers as they arrive at the app.

use std::io::{Read, Write};
use std::process::Stdio;

use kennel_testkit::{Scope, bin, wait_for};

use crate::odd_lines::{OddLine, requests};

const HANDSHAKE: [&str; 2] = [
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"0"}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
];

#[test]
fn rule_11_a_session_of_its_own_changes_nothing_at_all() {
    let scope = Scope::new("odd-solo");
    passes_odd_lines(
        &scope,
        &["--share", "never"],
        &requests("echo"),
        str::to_owned,
    );
}

#[test]
fn rule_11_a_shared_session_changes_ids_and_line_separators_and_nothing_else() {
    let scope = Scope::new("odd-shared");
    // Keys that are the envelope's in other case are refused where a server is shared.
    let in_own_case = |text: &str| {
        let text = text.replace("\"Id\"", "\"Ids\"");
        let text = text.replace("\\u0049D", "\\u0049Ds");
        text.replace("\"Result\"", "\"Results\"")
    };
    let lines = requests("echo").into_iter().map(|line| OddLine {
        before: in_own_case(&line.before),
        after: in_own_case(&line.after),
        ..line
    });
    let as_one = |text: &str| {
        let text = text.replace('\r', " ").replace('\u{2028}', "\\u2028");
        text.replace('\u{2029}', "\\u2029")
    };
    let options = ["--share", "always", "--linger", "100ms"];
    passes_odd_lines(&scope, &options, &lines.collect::<Vec<_>>(), as_one);
}

/// Through `kennel run` to a server whose input is copied, and back.
#[track_caller]
fn passes_odd_lines(
    scope: &Scope,
    options: &[&str],
    lines: &[OddLine],
    passed: impl Fn(&str) -> String,
) {
    // A way that spelled it anew would not spell it so.
    let id = |n: usize| match n % 2 {
        0 => format!("{}", n + 7),
        _ => format!(r#""\u0037\/{n}""#),
    };
    let mut said: String = HANDSHAKE.map(|line| format!("{line}\n")).concat();
    for (n, line) in lines.iter().enumerate() {
        said += &line.with_id(&id(n));
        said.push('\n');
    }
    let copy = scope.path("copy");
    let mut child = scope
        .command(env!("CARGO_BIN_EXE_kennel"))
        .arg("run")
        .args(options)
        .args(["--", "sh", "-c", r#"tee "$1" | "$2""#, "sh"])
        .arg(&copy)
        .arg(bin("tk-server"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(said.as_bytes()).unwrap());
    let mut heard = String::new();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_to_string(&mut heard).unwrap();
    writing.join().unwrap();
    assert!(child.wait().unwrap().success());

    // `tee` passes a line on before it writes its copy.
    let copy = wait_for("the server's input is copied", || {
        let copy = std::fs::read_to_string(&copy).unwrap();
        (copy.matches('\n').count() >= HANDSHAKE.len() + lines.len()).then_some(copy)
    });
    let arrived: Vec<&str> = copy.split_terminator('\n').skip(2).collect();
    let answers: Vec<&str> = heard.split_terminator('\n').skip(1).collect();
    assert_eq!((arrived.len(), answers.len()), (lines.len(), lines.len()));
    for (n, line) in lines.iter().enumerate() {
        let what = line.what;
        let (before, after) = (passed(&line.before), passed(&line.after));
        let inside = arrived[n].strip_prefix(&*before);
        let inside = inside.and_then(|rest| rest.strip_suffix(&*after));
        let inside = inside.unwrap_or_else(|| panic!("{what} arrived as another line"));
        if options.contains(&"never") {
            assert_eq!(inside, id(n), "{what}");
        }
        let params = before.split_once("\"params\" : ").unwrap().1;
        let params = params.split_once(" ,\"id\" : ").unwrap().0;
        let expected = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{params}}}"#, id(n));
        assert!(answers[n] == expected, "{what} came back as another answer");
    }
}
