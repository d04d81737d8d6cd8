//! Tasks belong to the session that began them.

use kennel_core::mux::{ClientId, Note, Unaddressed};

use crate::play::{
    INITIALIZED, Play, call, cancel, initialize, modern, notice, progress, reason, refusal,
    request, result,
};

/// A client begins a task.
fn begin(play: &mut Play, client: u64, task: &str) {
    let minted = play.asks(client, &call("\"begin\"", "a"));
    let answer = format!(r#"{{"task":{{"taskId":"{task}","status":"working"}}}}"#);
    play.server(&result(&minted, &answer));
    assert_eq!(play.heard(client), [result("\"begin\"", &answer)]);
}

fn about(id: &str, method: &str, task: &str) -> String {
    request(id, method, &format!(r#"{{"taskId":"{task}"}}"#))
}

fn status(task: &str, status: &str) -> String {
    let params = format!(r#"{{"taskId":"{task}","status":"{status}"}}"#);
    notice("notifications/tasks/status", &params)
}

fn ask_about(id: &str, task: &str) -> String {
    let params =
        format!(r#"{{"_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":"{task}"}}}}}}"#);
    request(id, "elicitation/create", &params)
}

#[test]
fn a_task_of_another_session_is_no_task() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        play.client(2, &about("1", method, "t"));
        assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
        play.nobody_hears();
        assert_eq!(play.notes(), [Note::ForeignTask(ClientId(2))]);
        let minted = play.asks(1, &about("1", method, r"\u0074"));
        play.server(&result(&minted, "{}"));
        assert_eq!(play.heard(1), [result("1", "{}")]);
    }
    let minted = play.asks(2, &about("1", "tasks/get", "unknown"));
    play.server(&result(&minted, "{}"));
    assert_eq!(play.heard(2), [result("1", "{}")]);
}

#[test]
fn each_session_lists_its_own_tasks() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "a");
    begin(&mut play, 2, "b");
    let list = |tasks: &str| format!(r#"{{ "tasks" :[{tasks}], "nextCursor":"c","x":1.0}}"#);
    let all = r#"{"taskId":"a","ttl":1.0}, {"taskId":"b"},{"taskId":"who?"} , {"taskId":"\u0061"}"#;
    let minted = play.asks(1, &request("1", "tasks/list", "{}"));
    play.server(&result(&minted, &list(all)));
    let own = list(r#"{"taskId":"a","ttl":1.0},{"taskId":"\u0061"}"#);
    assert_eq!(play.heard(1), [result("1", &own)]);
    let minted = play.asks(2, &request("1", "tasks/list", "{}"));
    play.server(&result(&minted, &list(r#" {"taskId":"b"} "#)));
    assert_eq!(
        play.heard(2),
        [result("1", &list(r#" {"taskId":"b"} "#))],
        "to the byte"
    );
}

#[test]
fn the_status_of_a_task_is_its_owners() {
    let mut play = Play::legacy(2);
    begin(&mut play, 2, "t");
    play.server(&status("t", "working"));
    assert_eq!(play.heard(2), [status("t", "working")]);
    play.server(&status("who?", "working"));
    play.nobody_hears();
    assert_eq!(play.notes(), [Note::Unaddressed(Unaddressed::Task)]);
}

#[test]
fn progress_goes_on_under_the_token_of_the_request_until_the_task_ends() {
    let mut play = Play::legacy(2);
    let params = r#"{"_meta":{"progressToken":"p"}}"#;
    let minted = play.asks(1, &request("1", "tools/call", params));
    play.server(&result(
        &minted,
        r#"{"task":{"taskId":"t","status":"working"}}"#,
    ));
    play.forget();
    play.server(&progress(&minted));
    assert_eq!(play.heard(1), [progress("\"p\"")]);
    play.server(&status("t", "completed"));
    play.forget();
    play.server(&progress(&minted));
    play.nobody_hears();
}

#[test]
fn a_question_about_a_task_is_its_owners_whoever_else_is_busy() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    play.asks(2, &call("1", "b"));
    play.server(&ask_about("0", "t"));
    play.is_asked(1);
    play.nobody_hears();

    play.leave(1);
    play.forget();
    play.server(&ask_about("1", "t"));
    assert_eq!(reason(&play.server_heard()[0]), "client_gone");
    play.nobody_hears();
}

#[test]
fn a_task_that_may_go_on_may_be_what_the_server_asks_about() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    play.asks(2, &call("1", "b"));
    play.server(&request("0", "sampling/createMessage", "{}"));
    assert_eq!(reason(&play.server_heard()[0]), "ambiguous_client");

    for end in ["completed", "failed", "cancelled"] {
        let mut play = Play::legacy(2);
        begin(&mut play, 1, "t");
        play.asks(2, &call("1", "b"));
        play.server(&status("t", end));
        play.forget();
        play.server(&request("0", "sampling/createMessage", "{}"));
        play.is_asked(2);
        play.nobody_hears();
    }
}

#[test]
fn who_is_told_how_a_task_ended_knows_that_it_did() {
    let told = r#"{"taskId":"t","status":"completed"}"#;
    for (method, answer) in [
        ("tasks/get", told),
        ("tasks/cancel", told),
        ("tasks/result", "{}"),
    ] {
        let mut play = Play::legacy(2);
        begin(&mut play, 1, "t");
        let minted = play.asks(1, &about("1", method, "t"));
        play.server(&result(&minted, answer));
        play.asks(2, &call("1", "b"));
        play.forget();
        play.server(&request("0", "sampling/createMessage", "{}"));
        play.is_asked(2);
    }
}

#[test]
fn a_session_that_comes_back_owns_its_tasks_again() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    play.leave(1);
    play.mux.join(ClientId(7), "session 1");
    play.client(7, &initialize("0"));
    play.client(7, INITIALIZED);
    play.forget();
    play.server(&status("t", "working"));
    assert_eq!(play.heard(7), [status("t", "working")]);
    play.asks(7, &about("1", "tasks/get", "t"));
}

#[test]
fn a_task_begun_by_what_was_cancelled_is_its_owners_still() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &call("1", "a"));
    play.client(1, &cancel("1"));
    play.server(&result(
        &minted,
        r#"{"task":{"taskId":"t","status":"working"}}"#,
    ));
    play.forget();
    play.client(2, &about("1", "tasks/get", "t"));
    assert_eq!(refusal(&play.heard(2)[0]).1, -32602);
    play.server(&ask_about("0", "t"));
    play.is_asked(1);
}

#[test]
fn a_task_of_the_modern_era_is_the_session_s_that_began_it() {
    for (kind, nested) in [(r#""resultType":"task","#, false), ("", false), ("", true)] {
        let mut play = Play::modern(2);
        let minted = play.asks(1, &modern("1", "tools/call", ""));
        let task = format!(r#"{{{kind}"taskId":"t","status":"working"}}"#);
        let answer = match nested {
            true => format!(r#"{{"task":{task}}}"#),
            false => task,
        };
        play.server(&result(&minted, &answer));
        assert_eq!(play.heard(1), [result("1", &answer)]);
        for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"] {
            play.client(2, &modern("2", method, r#","taskId":"t""#));
            assert_eq!(refusal(&play.heard(2)[0]), ("2".into(), -32602));
            play.nobody_hears();
            let minted = play.asks(1, &modern("2", method, r#","taskId":"t""#));
            play.server(&result(&minted, "{}"));
            assert_eq!(play.heard(1), [result("2", "{}")]);
        }
    }
}

#[test]
fn how_a_task_of_the_modern_era_goes_is_told_to_its_owner_alone() {
    let mut play = Play::modern(2);
    let minted = play.asks(1, &modern("1", "tools/call", ""));
    play.server(&result(&minted, r#"{"resultType":"task","taskId":"t"}"#));
    play.forget();
    let listen = r#","notifications":{"taskIds":["t"]}"#;
    let own = play.asks(1, &modern("8", "subscriptions/listen", listen));
    let foreign = play.asks(2, &modern("9", "subscriptions/listen", listen));
    for method in ["notifications/tasks/status", "notifications/tasks"] {
        let line = notice(method, r#"{"taskId":"t","inputRequests":{"k":"secret"}}"#);
        play.server(&line);
        assert_eq!(play.heard(1), [&line[..]]);
        play.nobody_hears();
        let subscribed = |id: &str| {
            let name = "io.modelcontextprotocol/subscriptionId";
            notice(
                method,
                &format!(r#"{{"_meta":{{"{name}":{id}}},"taskId":"t"}}"#),
            )
        };
        play.server(&subscribed(&own));
        assert_eq!(play.heard(1), [subscribed("8")]);
        play.server(&subscribed(&foreign));
        play.nobody_hears();
        play.server(&notice(method, r#"{"taskId":"who?"}"#));
        play.nobody_hears();
        play.forget();
    }
}

#[test]
fn a_session_with_very_many_tasks_learns_nothing_of_anothers() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    for nth in 0..4097 {
        begin(&mut play, 2, &format!("own-{nth}"));
    }
    play.notes();
    play.client(2, &about("1", "tasks/cancel", "t"));
    assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
    play.client(1, &about("1", "tasks/get", "own-0"));
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32602));
    play.nobody_hears();
    play.asks(1, &about("2", "tasks/get", "t"));
    // What was forgotten is its own.
    play.asks(2, &about("2", "tasks/get", "own-0"));
}

#[test]
fn a_task_id_is_a_string_whatever_is_asked_about_it() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    for params in [r#"{"taskId":["t"]}"#, r#"{"taskId":1}"#] {
        play.client(2, &request("1", "tasks/cancel", params));
        assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
    }
    play.client(2, &about("1", "tasks/delete", "t"));
    assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
    play.nobody_hears();
}

#[test]
fn only_who_works_on_a_task_for_the_server_tells_how_it_goes() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.server(&request("0", "sampling/createMessage", "{}"));
    let asked = play.is_asked(1);
    play.client(1, &result(&asked, r#"{"task":{"taskId":"w"}}"#));
    play.forget();
    play.client(2, &status("w", "failed"));
    play.nobody_hears();
    assert_eq!(play.notes(), [Note::ForeignTask(ClientId(2))]);
    play.client(1, &status("w", "working"));
    assert_eq!(play.server_heard(), [status("w", "working")]);
}
