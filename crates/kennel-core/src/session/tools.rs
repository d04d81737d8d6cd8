//! What the server said of its tools, learned from the app's own `tools/list` as the answers pass.
//!
//! It holds until the app is told that the list has changed, by the server or by the session: then a tool
//! of the same name may be another one, and nothing is known until the app lists them again. It outlives
//! the process that said it, for the next one is the same program; should that look different, the app is
//! told so, and what was known goes with it.

use std::collections::BTreeMap;

use crate::message::{CANONICAL_LIMIT, Part, Request};

use super::offer::digest;

#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Whether each may be called twice.
    repeatable: BTreeMap<Box<str>, bool>,
    bytes: usize,
    listed: Option<Listed>,
    /// A page of this list was too long to be looked at: nothing is known until the app lists the tools again.
    is_unknown: bool,
}

/// How the app asked for the list, and what the first page of it was.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) request: Vec<u8>,
    page: u64,
}

impl Tools {
    /// How much of what a server says is remembered; a tool past that is one that nothing is known of.
    const LIMIT: usize = 1 << 20;
    /// What a name costs beside its own bytes.
    const EACH: usize = 64;
    /// Maximum bytes of a page that is looked at. A longer one is passed on, and nothing is learned of its list.
    const LONGEST_PAGE: usize = CANONICAL_LIMIT;
    /// A longer question is not asked again.
    const LONGEST_REQUEST: usize = 16 * 1024;

    /// The app was answered. A first page begins anew, a later one adds to it.
    pub(super) fn learn(&mut self, line: &[u8], request: &Request<'_>, result: &Part<'_>) {
        let cursor = request.params.map(|params| params.member("cursor"));
        let is_first_page = matches!(cursor, None | Some(Ok(None)));
        if is_first_page {
            self.forget();
        }
        if self.is_unknown {
            return;
        }
        if result.bytes().len() > Tools::LONGEST_PAGE {
            // It may name a tool of another page that must not be called twice.
            self.forget();
            self.is_unknown = true;
            return;
        }
        let Ok(Some(tools)) = result.member("tools") else {
            return;
        };
        if is_first_page && line.len() <= Tools::LONGEST_REQUEST {
            self.listed = Some(Listed {
                request: line.to_vec(),
                page: digest(&tools),
            });
        }
        tools.for_each_element(|tool| {
            if let Ok(Some(name)) = tool.member("name")
                && let Some(name) = name.string()
            {
                self.note(&name, may_repeat(&tool));
            }
        });
    }

    /// The app is told that the list has changed.
    pub(super) fn forget(&mut self) {
        *self = Tools::default();
    }

    /// Whether the server said that this one may be called twice.
    pub(super) fn may_repeat(&self, name: &str) -> bool {
        self.repeatable.get(name).copied().unwrap_or(false)
    }

    /// How to ask whether the list is as it was, if it is known.
    pub(super) fn listed(&self) -> Option<&Listed> {
        self.listed.as_ref()
    }

    /// Whether this answer shows another list than the app knows.
    pub(super) fn differ(&self, result: &Part<'_>) -> bool {
        if result.bytes().len() > Tools::LONGEST_PAGE {
            return self.listed.is_some();
        }
        match (&self.listed, result.member("tools")) {
            (Some(listed), Ok(Some(tools))) => listed.page != digest(&tools),
            // It was told meanwhile, or there is nothing to compare.
            (None, _) | (Some(_), Ok(None) | Err(_)) => false,
        }
    }

    /// Of two tools with one name, both must be harmless: which of them is meant is the server's to say.
    fn note(&mut self, name: &str, may_repeat: bool) {
        if let Some(before) = self.repeatable.get_mut(name) {
            *before &= may_repeat;
        } else if self.bytes + name.len() + Tools::EACH <= Tools::LIMIT {
            self.bytes += name.len() + Tools::EACH;
            self.repeatable.insert(name.into(), may_repeat);
        }
    }
}

fn may_repeat(tool: &Part<'_>) -> bool {
    let says =
        |hint| matches!(tool.at(&["annotations", hint]), Ok(Some(it)) if it.text() == "true");
    says("readOnlyHint") || says("idempotentHint")
}
