//! JSON as people write it in configurations: with comments and trailing commas, read into places in the
//! text rather than into values, so that what is not changed keeps its bytes.

use std::collections::HashSet;
use std::ops::Range;

use super::entry::Unreadable;

/// No configuration is nested deeper.
const DEEPEST: usize = 200;

/// A value, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) span: Range<usize>,
    pub(crate) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    List(Vec<Node>),
    Object(Vec<Member>),
    /// A number, `true`, `false` or `null`: nobody here asks which.
    Plain,
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) key: String,
    pub(crate) key_span: Range<usize>,
    pub(crate) node: Node,
}

impl Node {
    /// The member of this name. No object has two of one name.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.member(key).map(|member| &member.node)
    }

    pub(crate) fn member(&self, key: &str) -> Option<&Member> {
        self.members().iter().find(|member| member.key == key)
    }

    pub(crate) fn members(&self) -> &[Member] {
        match &self.value {
            Value::Object(members) => members,
            _ => &[],
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads a document.
pub(crate) fn parse(text: &str) -> Result<Node, Unreadable> {
    let mut reader = Reader { text, at: 0 };
    // A byte order mark is no part of the document.
    reader.eat("\u{feff}");
    reader.trivia()?;
    let node = reader.value(0)?;
    reader.trivia()?;
    match reader.at == text.len() {
        true => Ok(node),
        false => Err(reader.expected("the end of the file")),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Node, Unreadable> {
        if depth > DEEPEST {
            return Err(self.wrong(self.at, "nested too deeply"));
        }
        let start = self.at;
        let value = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Value::Text(self.string()?),
            _ => self.plain()?,
        };
        let span = start..self.at;
        Ok(Node { span, value })
    }

    fn object(&mut self, depth: usize) -> Result<Value, Unreadable> {
        let mut members = Vec::new();
        let mut keys = HashSet::new();
        self.at += 1;
        loop {
            self.trivia()?;
            if self.eat("}") {
                return Ok(Value::Object(members));
            }
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.expected("a key in double quotes, or }"));
            }
            let key = self.string()?;
            let key_span = start..self.at;
            if !keys.insert(key.clone()) {
                let words = "a key that its object has already: the file cannot be read for sure";
                return Err(self.wrong(start, words));
            }
            self.trivia()?;
            if !self.eat(":") {
                return Err(self.expected("a colon"));
            }
            self.trivia()?;
            let node = self.value(depth + 1)?;
            members.push(Member {
                key,
                key_span,
                node,
            });
            self.trivia()?;
            if !self.eat(",") && self.peek() != Some(b'}') {
                return Err(self.expected("a comma or }"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, Unreadable> {
        let mut nodes = Vec::new();
        self.at += 1;
        loop {
            self.trivia()?;
            if self.eat("]") {
                return Ok(Value::List(nodes));
            }
            nodes.push(self.value(depth + 1)?);
            self.trivia()?;
            if !self.eat(",") && self.peek() != Some(b']') {
                return Err(self.expected("a comma or ]"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Unreadable> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None | Some(b'\n' | b'\r') => {
                    return Err(self.wrong(start, "a text without its end"));
                }
                Some(b'\\') => self.at += 2,
                Some(b'"') => break,
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        let literal = self.text.get(start..self.at).unwrap_or_default();
        serde_json::from_str(literal)
            .map_err(|_| self.wrong(start, "a text with an escape that JSON does not have"))
    }

    fn plain(&mut self) -> Result<Value, Unreadable> {
        let rest = &self.text[self.at..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c))
            .unwrap_or(rest.len());
        let known = serde_json::from_str::<serde_json::Value>(&rest[..end]);
        if end == 0 || known.is_err() {
            return Err(self.expected("a value"));
        }
        self.at += end;
        Ok(Value::Plain)
    }

    /// White space and comments.
    fn trivia(&mut self) -> Result<(), Unreadable> {
        loop {
            let rest = &self.text[self.at..];
            self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            let rest = &self.text[self.at..];
            if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                let end = rest.find("*/");
                self.at += end.ok_or_else(|| self.wrong(self.at, "a comment without its end"))? + 2;
            } else {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, word: &str) -> bool {
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn expected(&self, what: &str) -> Unreadable {
        let found = match self.text[self.at..].chars().next() {
            Some(c) => format!("{c:?}"),
            None => "the end of the file".to_owned(),
        };
        self.wrong(self.at, &format!("expected {what}, found {found}"))
    }

    fn wrong(&self, at: usize, what: &str) -> Unreadable {
        Unreadable::at(self.text, at, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_trailing_commas_and_a_byte_order_mark_are_read_over() {
        let text = "\u{feff}// first\r\n{ /* a */ \"a\": [1, \"x\\u00e9\", ], // b\n\"b\": {\"c\": null,},\n}\n";
        let node = parse(text).unwrap();
        let list = node.get("a").unwrap();
        let Value::List(nodes) = &list.value else {
            panic!("a list");
        };
        assert_eq!(&text[nodes[1].span.clone()], "\"x\\u00e9\"");
        assert_eq!(nodes[1].text(), Some("xé"));
        assert_eq!(node.get("b").unwrap().get("c").unwrap().value, Value::Plain);
    }

    #[test]
    fn what_is_no_json_is_told_with_its_line() {
        for (text, line, column) in [
            ("", 1, 1),
            ("{", 1, 2),
            ("{\n  \"a\": 1\n  \"b\": 2\n}", 3, 3),
            ("{\"a\": tru}", 1, 7),
            ("{\"a\": \"x\n\"}", 1, 7),
            ("{'a': 1}", 1, 2),
            ("{\"a\": [1 2]}", 1, 10),
            ("{} x", 1, 4),
            ("{ /* ", 1, 3),
            ("{\"a\": \"\\x\"}", 1, 7),
            ("{,}", 1, 2),
            ("[1,,2]", 1, 4),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(
                (error.line, error.column),
                (line, column),
                "{text:?}: {error}"
            );
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn an_object_with_two_members_of_one_name_is_refused() {
        for text in [
            r#"{"a": "1", "a": "2"}"#,
            r#"{"b": {"a": 1, "\u0061": 2}}"#,
            r#"[{"a": [], "c": 1, "a": []}]"#,
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("cannot be read for sure"), "{text}: {error}");
        }
        assert!(parse(r#"{"a": {"a": 1}, "b": {"a": 1}}"#).is_ok());
    }
}
