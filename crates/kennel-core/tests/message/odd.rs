//! Odd but legal: what no serializer writes, and every parser must bear.

/// A value that is legal JSON, and what is odd about it.
pub(crate) struct Odd {
    pub(crate) what: &'static str,
    pub(crate) value: String,
}

/// A line whose id is in its midst: everything before and after it belongs to whoever wrote it.
pub(crate) struct OddLine {
    pub(crate) what: &'static str,
    pub(crate) before: String,
    pub(crate) after: String,
}

impl OddLine {
    pub(crate) fn with_id(&self, id: &str) -> String {
        format!("{}{id}{}", self.before, self.after)
    }
}

pub(crate) fn values() -> Vec<Odd> {
    let nested = |depth: usize| {
        let (open, close) = (r#"{"a":["#.repeat(depth), "]}".repeat(depth));
        format!("{open}{close}")
    };
    let few = [
        (
            "big numbers",
            "[12345678901234567890123,-9007199254740993,18446744073709551616,1e400,-1E-400]",
        ),
        (
            "numbers in other words",
            "[-0,-0.0,0e0,0.10,1.0,1E+2,1e-02,100000000000000000000.0]",
        ),
        (
            "escapes",
            r#"["\/\b\f\n\r\t\"\\","\u0000\u001F\u001f","\u00E9\u00e9é","\u2028\u2029","\u003c"]"#,
        ),
        (
            "what needs none",
            "[\"\u{2028}\u{2029}\u{7f}\u{feff}\",\"'</script>\"]",
        ),
        (
            "surrogate pairs",
            r#"["\ud83d\ude00","\uD83D\uDE00","😀","\udbff\udfff"]"#,
        ),
        (
            "surrogates without their other half",
            r#"["\ud800","\udc00\ud800","\ud800\u0041"]"#,
        ),
        (
            "duplicate keys",
            r#"{"a":1,"a":2,"b":{"a":3,"a":{"a":3}},"\u0061":4,"a":null}"#,
        ),
        (
            "keys of an envelope",
            r#"{"id":7,"method":"x","jsonrpc":"1.0","params":{"id":"1"},"result":{},"error":{"id":null}}"#,
        ),
        (
            "odd keys",
            r#"{"":0,"\u0069d":1,"__proto__":{},"é":2,"a b":3,"\ud83d\ude00":4,"\"":5}"#,
        ),
        ("space", "[ 1 ,\t2\t,\r{ } , [\t] ,{ \"a\" :\r\"b\" }\r]"),
    ];
    let few = few.map(|(what, value)| Odd {
        what,
        value: value.to_owned(),
    });
    let mut all = Vec::from(few);
    for (what, depth) in [
        ("nesting as deep as the fast path reads", 63),
        ("deep nesting", 64),
        ("very deep nesting", 20_000),
    ] {
        let value = nested(depth);
        all.push(Odd { what, value });
    }
    all.push(Odd {
        what: "a string of 10 MB",
        value: format!("\"{}\"", "0123456789".repeat(1 << 20)),
    });
    all.push(Odd {
        what: "escapes of 1 MB",
        value: format!("\"{}\"", r"\ud83d\ude00\/".repeat(3 << 15)),
    });
    all
}

/// Requests that hold them, among unknown fields.
pub(crate) fn requests(method: &str) -> Vec<OddLine> {
    let request = |Odd { what, value }: Odd| {
        // A long one once.
        let unknown = if value.len() < 1 << 20 { &value } else { "[]" };
        OddLine {
            what,
            before: format!(
                " {{\"x-odd\":{unknown},\"method\" :\"{method}\",\t\"Id\":1,\"params\" : {{\"odd\":{value} }} ,\"id\" : "
            ),
            after: format!(",\"\\u0049D\":{unknown},\"jsonrpc\":\"2.0\",\"Result\":{{}} }}\t"),
        }
    };
    values().into_iter().map(request).collect()
}

/// Answers that hold them.
pub(crate) fn answers() -> Vec<OddLine> {
    let answer = |Odd { what, value }: Odd| OddLine {
        what,
        before: format!("{{\"result\":{{ \"odd\" :{value}}},\"x-odd\":0,\"id\":"),
        after: " , \"jsonrpc\":\"2.0\"}".to_owned(),
    };
    values().into_iter().map(answer).collect()
}
