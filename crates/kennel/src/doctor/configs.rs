//! What people wrote: `servers.toml`, and the configurations of their apps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kennel_sys::fs::FileFacts;

use super::Finding;
use crate::known_variables::{self, Unknown};
use crate::sharing::ServersToml;
use crate::sharing::launcher::{self, Launched};
use crate::wrap::Judged;
use crate::wrap::mask;
use crate::wrap::places::{Bases, Found};
use crate::wrap::splice;

/// Variables that look like Kennel's and have no effect.
pub(super) fn environment() -> Result<Vec<Finding>, String> {
    let finding = |Unknown { name, meant }| Finding {
        check: "environment",
        what: format!("{name} is set, and no such variable is known"),
        why: "it has no effect",
        mend: match meant {
            Some(meant) => format!("set {meant} instead, if that is meant; else unset {name}"),
            None => format!("unset {name}"),
        },
        pid: None,
    };
    let unknown = known_variables::unknown();
    Ok(unknown.into_iter().map(finding).collect())
}

pub(super) fn servers_toml() -> Result<Vec<Finding>, String> {
    let finding = |warning: String| Finding {
        check: "servers.toml",
        what: warning,
        why: "what it says there is not done",
        mend: "correct the line".to_owned(),
        pid: None,
    };
    let warnings = ServersToml::complaints_of_user();
    Ok(warnings.into_iter().map(finding).collect())
}

/// A configuration with its servers, or why it cannot be read.
struct Configuration {
    found: Found,
    servers: Result<Judged, String>,
}

/// Every configuration that is there, without the disabled servers.
fn configurations() -> Result<Vec<Configuration>, String> {
    let bases = Bases::of_user().ok_or("HOME is not set to an absolute path")?;
    let read = |found: Found| {
        let mut servers = crate::wrap::judge(&found, &bases.home);
        if let Ok(judged) = &mut servers {
            judged.entries.retain(|entry| !entry.is_disabled);
        }
        Configuration { found, servers }
    };
    Ok(bases.find(&[]).into_iter().map(read).collect())
}

fn finding(what: String, why: &'static str, mend: String) -> Finding {
    Finding {
        check: "apps",
        what,
        why,
        mend,
        pid: None,
    }
}

/// What is wrong with a server that an app starts without Kennel.
const DIRECT: &str = "a server for every session, and orphans when the app is killed";

/// Configurations that start servers without Kennel, or cannot be read.
pub(super) fn apps() -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    let (mut direct, mut gone) = (Vec::new(), Vec::new());
    for Configuration { found, servers } in configurations()? {
        let path = found.path.display();
        let title = found.client.map_or("", |client| client.title);
        let servers = match servers {
            Ok(servers) => servers,
            Err(error) => {
                let what = format!("{title}: {path}: {error}");
                let why = "the app may not read it either";
                findings.push(finding(what, why, "correct the line".to_owned()));
                continue;
            }
        };
        let mut names = Vec::new();
        for entry in &servers.entries {
            let Some(command) = entry.command() else {
                continue;
            };
            // What `wrap` leaves alone is as it should be, as far as Kennel can tell.
            if !servers.to_wrap.contains(&entry.name) {
                continue;
            }
            match splice::behind(&command) {
                None => names.push(entry.name.as_str()),
                Some(_) => gone.push(format!(
                    "{title}: {} is behind {}, which is gone ({path})",
                    entry.name, command[0]
                )),
            }
        }
        if names.is_empty() {
            continue;
        }
        let what = format!("{title} starts {} directly ({path})", names.join(", "));
        match servers.hindrance {
            None => direct.push(what),
            Some(hindrance) => {
                let fix = format!("{hindrance}; then `kennel wrap`");
                findings.push(finding(what, DIRECT, fix));
            }
        }
    }
    // One command for all of them: `wrap` shows each file, and asks.
    if !direct.is_empty() {
        findings.push(finding(direct.join("; "), DIRECT, "kennel wrap".to_owned()));
    }
    if !gone.is_empty() {
        let why = "the app cannot start this server";
        findings.push(finding(gone.join("; "), why, "kennel wrap".to_owned()));
    }
    Ok(findings)
}

/// Servers whose program is not there: one finding for each program.
pub(super) fn commands() -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    let mut lacking: BTreeMap<String, (Vec<String>, BTreeSet<String>)> = BTreeMap::new();
    for Configuration { found, servers } in configurations()? {
        let path = found.path.display();
        // What is wrong with it is another check's.
        let Ok(servers) = servers else {
            let why = format!("the servers of {path} are not known");
            findings.push(super::unseen("commands", &why));
            continue;
        };
        for entry in &servers.entries {
            let Some(command) = entry.command() else {
                continue;
            };
            let behind = splice::behind(&command);
            let own = behind.map_or(0, |behind| behind.server);
            let (kennel, server) = command.split_at(own);
            for missing in missing(kennel, server, entry.has_cwd) {
                // A whole command in the place of the program may hold a credential.
                let words: Vec<String> = missing.split_whitespace().map(Into::into).collect();
                let missing = mask::shown(&words).join(" ");
                let (servers, files) = lacking.entry(missing).or_default();
                servers.push(entry.name.clone());
                files.insert(path.to_string());
            }
        }
    }
    findings.extend(
        lacking
            .into_iter()
            .map(|(missing, (servers, files))| Finding {
                check: "commands",
                what: format!(
                    "{}: {missing} is not found ({})",
                    servers.join(", "),
                    files.into_iter().collect::<Vec<_>>().join(", ")
                ),
                why: "the app cannot start this server",
                mend: format!("install {missing}, or take the server out of the file"),
                pid: None,
            }),
    );
    Ok(findings)
}

/// What a command needs and does not find: its program, the script that an interpreter is to read, the directory
/// where Kennel is to start it.
fn missing<'c>(kennel: &'c [String], server: &'c [String], has_cwd: bool) -> Vec<&'c str> {
    // What the app fills in, or looks for elsewhere, cannot be judged from here.
    let judged = |word: &&str| !word.contains(['$', '{', '~']);
    let absolute = |word: &&str| word.starts_with('/');
    let program = server.first().map(String::as_str);
    let program = program.filter(|word| !has_cwd || absolute(word));
    let program = program.filter(judged).filter(|word| !is_there(word));
    let is_script = |word: &&str| match launcher::launched(server) {
        Some(Launched::Script(path)) => path == *word,
        // A file of an installed package stands for the package.
        _ => word.contains("/node_modules/"),
    };
    let words = server.iter().skip(1).map(String::as_str);
    let mut scripts = words.filter(absolute).filter(judged).filter(is_script);
    let script = scripts.find(|word| !Path::new(word).exists());
    let cwd = kennel.iter().skip_while(|word| *word != "--cwd").nth(1);
    let cwd = cwd
        .map(String::as_str)
        .filter(|dir| !Path::new(dir).is_dir());
    [program, script, cwd].into_iter().flatten().collect()
}

/// Whether a program is where a shell would look for it.
fn is_there(program: &str) -> bool {
    let executable = |path: &Path| {
        FileFacts::at(path).is_ok_and(|facts| facts.is_file() && facts.is_executable())
    };
    if program.contains('/') {
        return executable(Path::new(program)) || !Path::new(program).is_absolute();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| executable(&dir.join(program)))
}
