//! Quoting paths for a POSIX shell, so that a command in a message can be pasted.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `path` as one word for `sh`: UTF-8 in single quotes, other bytes through `printf`.
pub(crate) fn quoted(path: &Path) -> String {
    let mut word = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        if !chunk.valid().is_empty() {
            let text = chunk.valid().replace('\'', r"'\''");
            let _ = write!(word, "'{text}'");
        }
        if !chunk.invalid().is_empty() {
            word.push_str("\"$(printf '");
            for byte in chunk.invalid() {
                let _ = write!(word, "\\{byte:03o}");
            }
            word.push_str("')\"");
        }
    }
    if word.is_empty() {
        "''".to_owned()
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use super::*;

    #[test]
    fn every_path_survives_the_shell() {
        let paths: [&[u8]; 8] = [
            b"/tmp/plain",
            b"/tmp/two words",
            b"/tmp/it's \"quoted\" `x` $HOME $(id) \\ ! *",
            b"/tmp/-rf",
            b"/tmp/line\nbreak\n",
            b"/tmp/caf\xe9/\xff\xfe'x",
            b"/tmp/h\xc3\xa9",
            b"",
        ];
        for bytes in paths {
            let word = quoted(Path::new(OsStr::from_bytes(bytes)));
            let output = Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {word}"))
                .env("LC_ALL", "C")
                .output()
                .unwrap();
            assert_eq!(output.stdout, bytes, "{word}");
        }
    }
}
