//! Whatever a person wrote, what is wrong is told, and what is left can be asked.

use std::ffi::OsString;
use std::path::Path;

use crate::sharing::{self, EraFindings, ServersToml, SharingInput};

pub(super) fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let home = Path::new("/home/me");
    let (config, _) = ServersToml::parse(text, Some(home));
    for named in config.all_named() {
        assert!(!named.command.is_empty(), "it starts nothing");
        let first = config.named(&named.name).expect("it has this name");
        assert_eq!(first.name, named.name);
        asked(&config, &named.command);
    }
    // Its own words are as good a command as any.
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    asked(&config, &words);
}

fn asked(config: &ServersToml, command: &[String]) {
    let command: Vec<OsString> = command.iter().map(Into::into).collect();
    let _ = config.timers_for(&command);
    let decision = sharing::decide(&SharingInput {
        command: &command,
        config,
        remembered: EraFindings::default(),
    });
    assert!(!decision.why.is_empty(), "nobody knows why");
}
