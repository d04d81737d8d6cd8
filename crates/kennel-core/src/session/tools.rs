//! The tools of the server, learned from responses to the app's `tools/list`.
//!
//! Valid until the app is notified that the list has changed: then a tool of the same name may be another one, and
//! nothing is known until the app lists the tools again. It outlives the server process, because the next one runs the
//! same program; if that has other tools, the app is notified, and this is forgotten.

use std::collections::BTreeMap;

use crate::message::{CANONICAL_LIMIT, Part, Request};

use super::features::digest;

#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Whether each tool may be called twice.
    repeatable: BTreeMap<Box<str>, bool>,
    bytes: usize,
    listed: Option<Listed>,
    /// A page of the list was too long to be read: the list is unknown until the app requests it again.
    is_unknown: bool,
}

/// The app's request for the list, and a hash of its first page.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) request: Vec<u8>,
    page: u64,
}

impl Tools {
    /// Maximum bytes that are stored. Further tools count as unknown.
    const LIMIT: usize = 1 << 20;
    /// Memory of a name besides its bytes.
    const NAME_OVERHEAD: usize = 64;
    /// Maximum bytes of a page that is read. A longer page is forwarded, and the list counts as unknown.
    const MAX_PAGE: usize = CANONICAL_LIMIT;
    /// Maximum bytes of a request that is sent again.
    const MAX_REQUEST: usize = 16 * 1024;

    /// Records a response. A first page replaces the list, further pages add to it.
    pub(super) fn record_response(
        &mut self,
        line: &[u8],
        request: &Request<'_>,
        result: &Part<'_>,
    ) {
        let cursor = request.params.map(|params| params.member("cursor"));
        let is_first_page = matches!(cursor, None | Some(Ok(None)));
        if is_first_page {
            self.forget();
        }
        if self.is_unknown {
            return;
        }
        if result.bytes().len() > Tools::MAX_PAGE {
            // It may contain a tool that must not be called twice.
            self.forget();
            self.is_unknown = true;
            return;
        }
        let Ok(Some(tools)) = result.member("tools") else {
            return;
        };
        if is_first_page && line.len() <= Tools::MAX_REQUEST {
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

    /// Forgets the list, because the app is notified that it changed.
    pub(super) fn forget(&mut self) {
        *self = Tools::default();
    }

    /// Whether the server declared that this tool may be called twice.
    pub(super) fn may_repeat(&self, name: &str) -> bool {
        self.repeatable.get(name).copied().unwrap_or(false)
    }

    /// The request that checks whether the list has changed, if the list is known.
    pub(super) fn listed(&self) -> Option<&Listed> {
        self.listed.as_ref()
    }

    /// Whether this response differs from the list that the app knows.
    pub(super) fn differ(&self, result: &Part<'_>) -> bool {
        if result.bytes().len() > Tools::MAX_PAGE {
            return self.listed.is_some();
        }
        match (&self.listed, result.member("tools")) {
            (Some(listed), Ok(Some(tools))) => listed.page != digest(&tools),
            // The app was notified meanwhile, or there is nothing to compare.
            (None, _) | (Some(_), Ok(None) | Err(_)) => false,
        }
    }

    /// If two tools have the same name, both must be harmless: the server decides which one is called.
    fn note(&mut self, name: &str, may_repeat: bool) {
        if let Some(before) = self.repeatable.get_mut(name) {
            *before &= may_repeat;
        } else if self.bytes + name.len() + Tools::NAME_OVERHEAD <= Tools::LIMIT {
            self.bytes += name.len() + Tools::NAME_OVERHEAD;
            self.repeatable.insert(name.into(), may_repeat);
        }
    }
}

fn may_repeat(tool: &Part<'_>) -> bool {
    let says =
        |hint| matches!(tool.at(&["annotations", hint]), Ok(Some(it)) if it.text() == "true");
    says("readOnlyHint") || says("idempotentHint")
}
