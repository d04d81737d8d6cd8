//! What a server offers by its handshake, compared with what the one before it had offered.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::message::Part;

/// What a server lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum List {
    Tools,
    Prompts,
    Resources,
}

impl List {
    /// In their order.
    pub(super) const ALL: [List; 3] = [List::Tools, List::Prompts, List::Resources];

    /// As a capability is called.
    fn name(self) -> &'static str {
        match self {
            List::Tools => "tools",
            List::Prompts => "prompts",
            List::Resources => "resources",
        }
    }

    /// What an app is told when it has changed.
    pub(super) fn changed(self) -> &'static str {
        match self {
            List::Tools => "notifications/tools/list_changed",
            List::Prompts => "notifications/prompts/list_changed",
            List::Resources => "notifications/resources/list_changed",
        }
    }
}

/// What the latest server said of itself, and what the app was told to expect by the first one.
#[derive(Debug)]
pub(super) struct Offer {
    server: Option<u64>,
    capabilities: [Option<u64>; 3],
    /// Whether the app may hear that this list has changed.
    announced: [bool; 3],
}

impl Offer {
    /// Of the answer to `initialize` that the app got.
    pub(super) fn of(result: &Part<'_>) -> Offer {
        Offer {
            server: server(result),
            capabilities: List::ALL.map(|list| Some(digest(&capability(result, list)?))),
            announced: List::ALL.map(|list| {
                let says = capability(result, list).map(|it| it.member("listChanged"));
                matches!(says, Some(Ok(Some(says))) if says.text() == "true")
            }),
        }
    }

    /// Another server answered. Gives the lists that may be others than the app knows: of a program that
    /// is another one, all of them.
    pub(super) fn renew(&mut self, result: &Part<'_>) -> Vec<List> {
        let now = Offer {
            // That was settled by the answer that the app got.
            announced: self.announced,
            ..Offer::of(result)
        };
        let before = std::mem::replace(self, now);
        let differs = |list: &List| {
            let place = *list as usize;
            before.server != self.server || before.capabilities[place] != self.capabilities[place]
        };
        List::ALL.into_iter().filter(differs).collect()
    }

    /// Whether the app may hear that this list has changed.
    pub(super) fn announces(&self, list: List) -> bool {
        self.announced[list as usize]
    }
}

/// The same number for the same value, however it is spelled.
pub(super) fn digest(value: &Part<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.canonical().hash(&mut hasher);
    hasher.finish()
}

fn server(result: &Part<'_>) -> Option<u64> {
    let server = result.member("serverInfo").ok().flatten();
    server.map(|server| digest(&server))
}

fn capability<'a>(result: &Part<'a>, list: List) -> Option<Part<'a>> {
    result.at(&["capabilities", list.name()]).ok().flatten()
}
