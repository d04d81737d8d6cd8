//! Rule 11: odd but legal lines pass to the byte, but for the ids. And what is done leaves nothing behind.

use std::ops::Range;
use std::time::Duration;

use kennel_core::mux::{Class, ClientId, Mux, MuxPolicy, Output};
use kennel_core::time::Moment;
use proptest::prop_assert_eq;

use crate::chance::holds;
use crate::lines;
use crate::odd::{self, OddLine};
use crate::play::{
    Play, call, cancel, class_of, id_of, initialize, notice, reason, refusal, request, result,
};

#[test]
fn rule_11_odd_but_legal_lines_pass_to_the_byte_but_for_the_ids() {
    let mut play = Play::legacy(2);
    let odd = |id: &str, token: &str| {
        format!(
            "\t{{\"params\" :\t{{\"a\":1.0,\"a\":1e400, \"_meta\"\t:{{ \"x\":\"\\ud800\",\"progressToken\" : {token} ,\"y\":[[]]}} , \"é\":\"\\u00e9\\/\"}},\"Ids\":7,\"method\":\"tools\\/call\" ,\"id\" : {id},\"jsonrpc\":\"2\\u002e0\"}} \r"
        )
    };
    play.client(1, &odd(r#""\u0031""#, r#""\/ \u2028""#));
    let heard = play.server_heard();
    let minted = id_of(&heard[0]);
    assert_eq!(heard, [odd(&minted, &format!("\"{minted}\""))]);

    let progress = |token: &str| {
        format!(
            "{{\"method\":\"notifications\\/progress\",\"jsonrpc\":\"2.0\", \"params\" : {{\"progress\":0.10,\"progressToken\" :{token},\"z\":1E+2}}}}\r"
        )
    };
    play.server(&progress(&minted));
    assert_eq!(play.heard(1), [progress(r#""\/ \u2028""#)]);

    let answer = |id: &str| {
        format!(
            "{{\"result\":{{\"big\":12345678901234567890,\"id\":{{}}}},\"jsonrpc\":\"2.0\" ,\"id\":{id} , \"error\" : null}}"
        )
    };
    play.server(&answer(&minted));
    assert_eq!(play.heard(1), [answer(r#""\u0031""#)]);
}

#[test]
fn no_client_ends_a_line_of_a_shared_server_early() {
    let mut play = Play::legacy(2);
    let smuggled = r#"{"jsonrpc":"2.0","id":0,"result":{"action":"accept"}}"#;
    let line = |between: &str, text: &str| {
        let params = format!(r#"{{"x":{between}{smuggled}{between},"y{text}":"{text}"}}"#);
        format!("{between}{}{between}", request("9", "ping2", &params))
    };
    // A carriage return is the end of a line to Python, Java, C# and Node, the others to Node or Java.
    play.client(1, &line("\r", "\u{2028}\u{2029}\u{85}\u{2027}é"));
    let heard = play.server_heard();
    let passed = line(" ", "\\u2028\\u2029\\u0085\u{2027}é");
    // The last one is part of the line's end.
    let passed = format!("{}\r", &passed[..passed.len() - 1]);
    assert_eq!(heard.len(), 1);
    assert_eq!(with_id(&heard[0], "9"), passed);

    let notice =
        format!("{{\"jsonrpc\":\"2.0\",\r\"method\":\"x\",\"params\":{{\"a\":{smuggled}}}}}\r");
    play.client(2, &notice);
    assert_eq!(play.server_heard(), [notice.replace(",\r", ", ")]);
}

#[test]
fn the_server_ends_no_line_of_a_client_early_with_what_another_said() {
    let mut play = Play::legacy(2);
    let log = |between: &str, text: &str| {
        let params = format!(r#"{{"level":"info",{between}"data":"{text}{{}}"}}"#);
        notice("notifications/message", &params)
    };
    play.server(&log("\r", "\u{2028}"));
    assert_eq!(play.heard(1), [log(" ", "\\u2028")]);
    assert_eq!(play.heard(2), [log(" ", "\\u2028")]);
}

#[test]
fn a_session_with_its_own_server_may_end_lines_as_it_likes() {
    let mut play = Play::new(Class::private());
    play.enter(1);
    let odd = |id: &str| {
        format!("{{\"jsonrpc\":\"2.0\",\r\"id\":{id},\"Id\":7,\"method\":\"x\u{2028}\"}}")
    };
    let minted = play.asks(1, &odd("1"));
    play.client(1, &odd("2"));
    let heard = play.server_heard();
    assert_eq!(heard, [odd(&id_of(&heard[0]))]);
    assert_ne!(id_of(&heard[0]), minted);
}

#[test]
fn a_line_with_separators_without_end_is_refused() {
    let mut play = Play::legacy(2);
    let blob = "\u{85}".repeat(1 << 20);
    play.client(1, &request("1", "x", &format!(r#"["{blob}"]"#)));
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32700));
    play.nobody_hears();
    play.client(1, &request("1", "x", r#"[" "]"#));
    assert_eq!(play.server_heard().len(), 1);
}

#[test]
fn a_message_that_is_another_to_some_readers_is_refused() {
    let mut play = Play::legacy(2);
    for key in [
        "ID",
        "Method",
        "PARAMS",
        "Result",
        "eRror",
        "param\u{17f}",
        "\\u0049d",
        "method\\u0000",
    ] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","{key}":{{}}}}"#);
        play.client(1, &line);
        assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32600), "{key}");
        play.nobody_hears();
    }
    play.client(
        1,
        r#"{"jsonrpc":"2.0","id":1,"method":"x","Ids":1,"idé":2}"#,
    );
    assert_eq!(play.server_heard().len(), 1);
}

#[test]
fn rule_11_whatever_is_odd_passes_both_ways_with_another_id() {
    let mut play = Play::legacy(2);
    let ids = ["7", r#""\u0037\/""#];
    let requests = odd::requests("tools/call");
    for ((request, answer), id) in requests.iter().zip(odd::answers()).zip(ids.iter().cycle()) {
        let what = request.what;
        let request = OddLine {
            before: in_own_case(&request.before),
            after: in_own_case(&request.after),
            what,
        };
        play.client(2, &request.with_id(id));
        let heard = play.server_heard();
        assert_eq!(heard.len(), 1, "{what}");
        let minted = heard[0].strip_prefix(&*as_one(&request.before));
        let minted = minted.and_then(|rest| rest.strip_suffix(&*as_one(&request.after)));
        let minted = minted.unwrap_or_else(|| panic!("{what} was changed"));
        play.server(&answer.with_id(minted));
        assert!(play.heard(2) == [as_one(&answer.with_id(id))], "{what}");
    }
}

#[test]
fn rule_11_whatever_a_request_or_an_answer_holds() {
    let requests = (lines::message(), lines::message());
    holds("mux exactness", requests, |(one, other)| {
        let mut play = Play::legacy(2);
        for (client, line) in [(1, &one), (2, &other)] {
            let shape = serde_json::from_str::<serde_json::Value>(line);
            let is_request =
                shape.is_ok_and(|it| it.get("method").is_some() && it.get("id").is_some());
            play.client(client, line);
            let heard = play.server_heard();
            if is_request && let [heard] = &heard[..] {
                let minted = id_of(heard);
                let line = &as_one(line);
                prop_assert_eq!(&with_id(heard, &id_of(line)), line);
                let answer = |id: &str| {
                    format!("{{\"id\" :{id}, \"result\":{{\"a\":1.0}},\"jsonrpc\":\"2.0\"}}")
                };
                play.server(&answer(&minted));
                prop_assert_eq!(play.heard(client), [answer(&id_of(line))]);
            }
        }
        Ok(())
    });
}

/// Without keys that are the envelope's to readers that ignore case.
fn in_own_case(line: &str) -> String {
    let line = line.replace("\"Id\"", "\"Ids\"");
    let line = line.replace("\\u0049D", "\\u0049Ds");
    line.replace("\"Result\"", "\"Results\"")
}

/// What passes a shared server of this line, which is one to every reader.
fn as_one(line: &str) -> String {
    let (line, end) = match line.strip_suffix('\r') {
        Some(line) => (line, "\r"),
        None => (line, ""),
    };
    let line = line.replace('\r', " ").replace('\u{2028}', "\\u2028");
    let line = line.replace('\u{2029}', "\\u2029");
    line.replace('\u{85}', "\\u0085") + end
}

#[test]
fn a_very_long_line_passes() {
    let mut play = Play::legacy(1);
    let blob = "x".repeat(32 << 20);
    let long = |id: &str, token: &str| {
        let params = format!(r#"{{"blob":"{blob}","_meta":{{"progressToken":{token}}}}}"#);
        request(id, "tools/call", &params)
    };
    play.client(1, &long("5", "5"));
    let heard = play.server_heard();
    let minted = id_of(&heard[0]);
    assert!(heard[0] == long(&minted, &minted));
    let answer = |id: &str| result(id, &format!(r#"{{"blob":"{blob}"}}"#));
    play.server(&answer(&minted));
    assert!(play.heard(1) == [answer("5")]);
}

#[test]
fn what_is_done_leaves_nothing_behind() {
    let mut play = Play::legacy(2);
    let size = |mux: &Mux| format!("{mux:?}").len();
    let round = |play: &mut Play, numbers: Range<u64>| {
        for n in numbers {
            let minted = play.asks(
                1,
                &request("1", "tools/call", r#"{"_meta":{"progressToken":1}}"#),
            );
            play.server(&result(&minted, "{}"));
            play.client(2, &call("1", "b"));
            play.client(2, &cancel("1"));
            let subscribe = request("3", "resources/subscribe", &format!(r#"{{"uri":"{n}"}}"#));
            play.forget();
            let minted = play.asks(1, &subscribe);
            play.server(&result(&minted, "{}"));
            let minted = play.asks(1, &subscribe.replace("subscribe", "unsubscribe"));
            play.server(&result(&minted, "{}"));
            play.client(
                2,
                &request(&n.to_string(), "resources/subscribe", r#"{"uri":"x"}"#),
            );
            if let Some(line) = play.server_heard().first() {
                play.server(&result(&id_of(line), "{}"));
            }
            let minted = play.asks(1, &call("1", "a"));
            let task = format!(r#"{{"task":{{"taskId":"{n:07}","status":"working"}}}}"#);
            play.server(&result(&minted, &task));
            play.enter(n + 10);
            play.leave(n + 10);
            play.server(&request("1", "ping", "{}"));
            play.forget();
        }
    };
    round(&mut play, 0..5000);
    let before = size(&play.mux);
    round(&mut play, 5000..6000);
    let after = size(&play.mux);
    assert!(after < before + before / 50, "{before} bytes, then {after}");
}

#[test]
fn a_ghost_that_is_forgotten_haunts_still() {
    let mut play = Play::legacy(3);
    let oldest = play.asks(3, &call("1", "c"));
    play.client(3, &cancel("1"));
    for _ in 0..2000 {
        play.client(1, &call("1", "a"));
        play.client(1, &cancel("1"));
    }
    play.forget();
    play.server(&request("0", "sampling/createMessage", "{}"));
    assert_eq!(reason(&play.server_heard()[0]), "ambiguous_client");
    play.server(&result(&oldest, "{}"));
    play.nobody_hears();
}

#[test]
fn the_same_calls_give_the_same_answers() {
    let play = |_| {
        let mut mux = Mux::new(class_of(&initialize("0")), MuxPolicy::default());
        let mut out = Vec::new();
        for client in 0..20 {
            mux.join(ClientId(client), &client.to_string());
            let now = Moment::START + Duration::from_millis(client);
            mux.handle_client_line(ClientId(client), initialize("0").as_bytes(), now);
            mux.handle_client_line(ClientId(client), call("1", "a").as_bytes(), now);
        }
        for client in (0..20).rev() {
            mux.leave(ClientId(client), Moment::START);
        }
        out.extend(std::iter::from_fn(|| mux.poll_output()));
        out
    };
    let (one, other): (Vec<Output>, Vec<Output>) = (play(1), play(2));
    assert_eq!(one, other);
}

fn with_id(line: &str, id: &str) -> String {
    let message = kennel_core::message::Message::parse(line.as_bytes()).expect("a message");
    let place = message.id().expect("an id");
    let back = kennel_core::message::splice_id(line.as_bytes(), &place, id.as_bytes());
    String::from_utf8(back).expect("text")
}
