//! What an app hears when the next server is another one.

use crate::play::{INITIALIZE, INITIALIZED, Play, request};

const ALL: &str = r#""tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true}"#;

fn welcome(version: &str, capabilities: &str) -> String {
    let server = format!(r#""serverInfo":{{"version":"{version}","name":"s"}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":0,"result":{{{server},"capabilities":{{{capabilities}}}}}}}"#)
}

fn changed(list: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/{list}/list_changed","params":{{}}}}"#)
}

fn tools(id: &str, names: &[&str]) -> String {
    let tools: Vec<String> = names
        .iter()
        .map(|name| format!(r#"{{"name":"{name}","x":1}}"#))
        .collect();
    let tools = tools.join(", ");
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{tools}]}}}}"#)
}

fn greeted_by(welcome: &str) -> Play {
    let mut play = Play::modern();
    play.app(INITIALIZE);
    play.upstream(welcome);
    play.app(INITIALIZED);
    play.app_heard();
    play.upstream_heard();
    play
}

/// What the app hears of the next server, and what that hears after the handshake.
fn next(play: &mut Play, welcome: &str) -> (Vec<String>, Vec<String>) {
    play.lose();
    play.attach();
    play.upstream(welcome);
    let heard = play.upstream_heard();
    assert_eq!(heard[..2], [INITIALIZE, INITIALIZED]);
    (play.app_heard(), heard[2..].to_vec())
}

#[test]
fn a_server_that_is_the_same_is_not_worth_a_word() {
    let mut play = greeted_by(&welcome("1", ALL));
    let respelled = welcome("1", ALL).replace(
        r#""version":"1","name":"s""#,
        r#""name" : "\u0073","version":"1""#,
    );
    assert_eq!(next(&mut play, &respelled), (vec![], vec![]));
}

#[test]
fn another_version_may_have_other_lists_of_everything_and_another_capability_of_that() {
    let mut play = greeted_by(&welcome("1", ALL));
    let lists = ["tools", "prompts", "resources"].map(changed);
    assert_eq!(next(&mut play, &welcome("2", ALL)).0, lists);
    assert_eq!(
        next(&mut play, &welcome("2", ALL)).0,
        [""; 0],
        "that is known now"
    );
    let fewer = ALL.replace(r#","subscribe":true"#, "");
    assert_eq!(
        next(&mut play, &welcome("2", &fewer)).0,
        [changed("resources")]
    );
    let none = r#""tools":{"listChanged":true}"#;
    let gone = ["prompts", "resources"].map(changed);
    assert_eq!(next(&mut play, &welcome("2", none)).0, gone);
}

#[test]
fn what_the_app_was_not_told_to_expect_it_is_not_told() {
    let mut play = greeted_by(&welcome(
        "1",
        r#""tools":{},"prompts":{"listChanged":false}"#,
    ));
    assert_eq!(next(&mut play, &welcome("2", ALL)).0, [""; 0]);

    // Nor before it has said that it is there.
    let mut play = Play::modern();
    play.app(INITIALIZE);
    play.upstream(&welcome("1", ALL));
    play.app_heard();
    play.lose();
    play.attach();
    play.upstream(&welcome("2", ALL));
    assert_eq!(play.app_heard(), [""; 0]);
}

#[test]
fn tools_are_compared_with_what_the_app_last_saw() {
    let mut play = greeted_by(&welcome("1", ALL));
    let same = &welcome("1", ALL);
    play.app(&request("1", "tools/list"));
    play.upstream(&tools("1", &["a", "b"]));
    play.upstream_heard();
    play.app_heard();

    let asked = |own: &str| vec![request(own, "tools/list")];
    assert_eq!(next(&mut play, same), (vec![], asked(r#""kennel-1""#)));
    play.upstream(&tools(r#""kennel-1""#, &["a", "b"]).replace(", ", " ,  "));
    assert_eq!(play.app_heard(), [""; 0], "nothing changed");

    assert_eq!(next(&mut play, same).1, asked(r#""kennel-2""#));
    play.upstream(&tools(r#""kennel-2""#, &["a", "c"]));
    assert_eq!(play.app_heard(), [changed("tools")]);

    // Until it looks again it knows nothing, and need not be told twice.
    assert_eq!(next(&mut play, same), (vec![], vec![]));
    play.app(&request("2", "tools/list"));
    play.upstream(&tools("2", &["a"]));
    play.upstream_heard();
    play.app_heard();
    assert_eq!(next(&mut play, same).1, asked(r#""kennel-3""#));
    // It looked meanwhile: what it saw then counts.
    play.app(&request("3", "tools/list"));
    play.upstream(&tools("3", &["z"]));
    play.upstream(&tools(r#""kennel-3""#, &["z"]));
    assert_eq!(play.app_heard(), [tools("3", &["z"])]);
    play.upstream_heard();

    // Whoever is told by the handshake is not asked.
    let (heard, asked) = next(&mut play, &welcome("2", ALL));
    assert_eq!((heard[0].clone(), asked), (changed("tools"), vec![]));
}

#[test]
fn nothing_is_learned_of_a_list_with_a_page_that_is_very_long() {
    let same = &welcome("1", ALL);
    let mut play = greeted_by(same);
    let long = format!(r#"a","y":"{}"#, "y".repeat(3 << 20));
    for (cursor, names) in [("", ["a"]), ("", [&long]), (r#"{"cursor":"2"}"#, ["b"])] {
        let asked = match cursor {
            "" => request("1", "tools/list"),
            _ => format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{cursor}}}"#),
        };
        play.app(&asked);
        play.upstream(&tools("1", &names));
        assert_eq!(play.app_heard(), [tools("1", &names)]);
    }
    play.upstream_heard();
    // Neither is the list compared, nor is a tool of it called twice.
    assert_eq!(next(&mut play, same), (vec![], vec![]));

    // It looks again, and the next server has a very long list: that is another one.
    play.app(&request("2", "tools/list"));
    play.upstream(&tools("2", &["a"]));
    play.upstream_heard();
    play.app_heard();
    next(&mut play, same);
    play.upstream(&tools(r#""kennel-1""#, &[&long]));
    assert_eq!(play.app_heard(), [changed("tools")]);
}

#[test]
fn nobody_is_asked_for_an_app_that_does_not_listen() {
    let mut play = greeted_by(&welcome("1", r#""tools":{}"#));
    play.app(&request("1", "tools/list"));
    play.upstream(&tools("1", &["a"]));
    play.upstream_heard();
    play.app_heard();
    assert_eq!(
        next(&mut play, &welcome("1", r#""tools":{}"#)),
        (vec![], vec![])
    );

    let mut play = Play::modern();
    play.app(&request("1", "tools/list"));
    play.upstream(&tools("1", &["a"]));
    play.upstream_heard();
    play.lose();
    play.attach();
    assert_eq!(play.upstream_heard(), [""; 0]);
}

#[test]
fn in_the_modern_era_changed_tools_are_told_on_the_subscriptions_that_want_to_hear_it() {
    let subscription =
        |id: &str| format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
    let acknowledge = |id: &str, tools: bool| {
        let honoured = format!(r#""notifications":{{"toolsListChanged":{tools}}}"#);
        let params = format!("{{{},{honoured}}}", subscription(id));
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{params}}}"#
        )
    };
    let mut play = Play::modern();
    for (id, wanted) in [("7", true), ("8", false), (r#""\u0039""#, true)] {
        play.app(&request(id, "subscriptions/listen"));
        play.upstream(&acknowledge(id, wanted));
    }
    play.app(&request("1", "tools/list"));
    play.upstream(&tools("1", &["a"]));
    play.upstream_heard();
    play.app_heard();
    play.lose();
    play.attach();
    assert_eq!(
        play.upstream_heard()[0],
        request(r#""kennel-1""#, "tools/list")
    );
    play.upstream(&tools(r#""kennel-1""#, &["b"]));
    let told = |id: &str| {
        let params = subscription(id);
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{{{params}}}}}"#
        )
    };
    let mut heard = play.app_heard();
    heard.sort();
    assert_eq!(heard, [told(r#""\u0039""#), told("7")]);
}
