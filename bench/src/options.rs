//! What a person may ask for, and what is to be said afterwards.

use std::cell::RefCell;
use std::path::PathBuf;

use serde_json::Value;

use crate::plan::Clock;

/// The servers that `peers` knows.
const SERVERS: [&str; 3] = ["everything", "python", "notes"];

#[derive(Debug, Default)]
pub(crate) struct Options {
    /// How often a thing is measured, in each batch.
    pub(crate) count: Option<usize>,
    /// A short run.
    pub(crate) quick: bool,
    /// For programs rather than people.
    pub(crate) json: bool,
    /// Which server is put behind the peers; none: all of them.
    pub(crate) server: Option<String>,
    /// How many apps, and servers of each, in `scale`.
    pub(crate) apps: Option<usize>,
    pub(crate) servers: Option<usize>,
    /// The `kennel` of a former build, for `former`.
    pub(crate) against: Option<PathBuf>,
    /// Where the whole report goes, beside what is printed.
    pub(crate) out: Option<PathBuf>,
    /// How much time there is.
    pub(crate) clock: Clock,
    told: RefCell<Vec<Value>>,
    skipped: RefCell<Vec<String>>,
}

impl Options {
    pub(crate) fn parse(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut rest = arguments.iter().copied();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().unwrap_or_default();
            match argument {
                "--json" => options.json = true,
                "--quick" => options.quick = true,
                "--count" => options.count = Some(number(argument, value())?),
                "--apps" => options.apps = Some(number(argument, value())?),
                "--servers" => options.servers = Some(number(argument, value())?),
                "--server" => {
                    let server = value();
                    if !SERVERS.contains(&server) {
                        let known = SERVERS.join(", ");
                        return Err(format!("--server takes one of {known}, not `{server}`"));
                    }
                    options.server = Some(server.to_owned());
                }
                "--against" => match value() {
                    "" => return Err("--against takes a program: the former `kennel`".to_owned()),
                    program => options.against = Some(program.into()),
                },
                "--out" => match value() {
                    "" => return Err("--out takes a directory".to_owned()),
                    dir => options.out = Some(dir.into()),
                },
                other => return Err(format!("no option is called `{other}`")),
            }
        }
        Ok(options)
    }

    /// How often, unless the person said so: `quick` times in a short run, else `full` times.
    pub(crate) fn count(&self, full: usize, quick: usize) -> usize {
        self.count.unwrap_or(if self.quick { quick } else { full })
    }

    /// Says what was measured, as the person wants it.
    pub(crate) fn tell(&self, json: Value, for_people: impl FnOnce()) {
        if self.json {
            println!("{json}");
        } else {
            for_people();
        }
        self.told.borrow_mut().push(json);
    }

    /// Says that something was not measured, and what would be needed.
    pub(crate) fn skipped(&self, what: &str) {
        eprintln!("kennel-bench: skipped: {what}");
        self.skipped.borrow_mut().push(what.to_owned());
    }

    /// All that was measured, and what was not.
    pub(crate) fn take(&self) -> (Vec<Value>, Vec<String>) {
        (self.told.take(), self.skipped.take())
    }
}

fn number(option: &str, value: &str) -> Result<usize, String> {
    let number = value.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| format!("{option} takes a whole number from 1, not `{value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_odd_is_refused_with_what_would_do() {
        for (arguments, why) in [
            (&["--count", "0"][..], "--count takes a whole number"),
            (&["--apps"], "--apps takes a whole number"),
            (&["--server", "x"], "--server takes one of everything"),
            (&["--out"], "--out takes a directory"),
            (&["--against"], "--against takes a program"),
            (&["--fast"], "no option is called `--fast`"),
        ] {
            let said = Options::parse(arguments).expect_err("it is refused");
            assert!(said.starts_with(why), "{said}");
        }
    }

    #[test]
    fn a_short_run_counts_less_unless_it_is_told() {
        assert_eq!(Options::parse(&[]).unwrap().count(9, 3), 9);
        assert_eq!(Options::parse(&["--quick"]).unwrap().count(9, 3), 3);
        let options = Options::parse(&["--quick", "--count", "5"]).unwrap();
        assert_eq!(options.count(9, 3), 5);
    }
}
