//! The keys of earlier builds: a session looks for their daemon before it starts one, so that no second writer starts beside
//! it. A version goes when no build with it is in use any more.

mod version_1;
mod version_2;

use std::ffi::OsString;

use kennel_core::hello::{ClientHello, KeyFields, Text};
use kennel_sys::confinement::Confinement;
use kennel_sys::text::os_string;

use crate::key::variables::{Ecosystem, Question};
use crate::key::{self, Ingredients};
use crate::sharing::table;
pub(crate) use version_2::VERSION;

/// The former keys of the client that says this hello, the newest version first; none if its key is of another version. The
/// hello is one of [`hello_of`], or of a build with the key of version 2.
pub(crate) fn of_hello(hello: &ClientHello, confinement: &Confinement) -> Vec<String> {
    let keys = |what: &Ingredients<'_>| {
        vec![
            version_2::of(what, confinement),
            version_1::of(what, confinement),
        ]
    };
    key::with_ingredients(hello, keys).unwrap_or_default()
}

/// What a session says at a daemon of a former key: a build with the key of [`VERSION`] serves those who say that version,
/// and computes the key from the names that counted then. Builds since then compute their own from the whole environment.
/// `cwd_given`: somebody said where to run (`--cwd`).
pub(crate) fn hello_of(hello: &ClientHello, cwd_given: bool) -> ClientHello {
    let os = |text: &Text| os_string(text.as_bytes());
    let command: Vec<OsString> = hello.spec.command.iter().map(os).collect();
    let pair = |(name, value): &(Text, Text)| (os(name), os(value));
    let env: Vec<(OsString, OsString)> = hello.env.iter().map(pair).collect();
    let fields = hello.key.as_ref();
    let named = fields.and_then(|fields| fields.env_key.as_ref());
    let env_key: Option<Vec<OsString>> = named.map(|names| names.iter().map(os).collect());
    let known = table::variables_of(&command);
    let names = version_2::counted(Question {
        env: &env,
        env_key: env_key.as_deref(),
        known: known.as_deref(),
        cwd_given,
        ecosystem: Ecosystem::of(&command),
    });
    ClientHello {
        key: fields.map(|fields| KeyFields {
            version: VERSION,
            names: names
                .iter()
                .map(|name| Text::from(name.as_encoded_bytes()))
                .collect(),
            ..fields.clone()
        }),
        ..hello.clone()
    }
}
