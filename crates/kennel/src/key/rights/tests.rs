use super::*;

pub(crate) fn token_prefixes() -> Vec<&'static str> {
    tokens().map(|(prefix, _)| prefix).collect()
}

pub(crate) fn secret_addresses() -> Vec<&'static str> {
    SECRET_ADDRESSES.iter().collect()
}

#[test]
fn credentials_are_recognised_by_name_or_by_value() {
    for name in [
        "MYSQL_PWD",
        "PGPASSWORD",
        "PGPASSFILE",
        "GPG_PASSPHRASE",
        "SSHPASS",
        "OPENAI_API_KEYS",
        "DATABASE_URL",
        "SUPABASE_JWT",
        "KUBECONFIG",
        "SNOWFLAKE_PRIVATEKEY_PATH",
        "GITLAB_PAT",
        "SENTRY_DSN",
        "DB_CREDS",
        "AWSACCESSKEY",
        "GITHUB_OAUTH",
        "DBPASS",
        "SIGNING_KEY2",
        "SSHKEY",
        "PASSCODE",
        "githubPat",
        "apiKey",
        "AZURE_STORAGE_CONNECTION_STRING",
        "GOOGLE_SERVICE_ACCOUNT_JSON",
    ] {
        assert!(are_given_by(name.as_bytes(), b"x"), "{name}");
    }
    for name in [
        "PWD",
        "OLDPWD",
        "SSH_AUTH_SOCK",
        "PATH",
        "API_URL",
        "KEYBOARD",
    ] {
        assert!(!are_given_by(name.as_bytes(), b"x"), "{name}");
    }
    for value in [
        "postgres://ada:pw@db.example/notes",
        "mongodb+srv://ada:p%40w@a.example,b.example/x",
        "redis://:pw@cache.example:6379",
        "https://ada:p@w@host.example",
        "https://one.example https://ada:pw@two.example",
        "https://ghx@host.example/x.git",
        "https://ghx:@host.example",
        "jdbc:postgresql://host.example/x?user=ada&password=pw",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=pw==",
        "Server=db;Pwd=pw",
    ] {
        assert!(are_given_by(b"SOME_URL", value.as_bytes()), "{value}");
    }
    for value in [
        "https://host.example:8080/a:b@c",
        "ssh://git@host.example:22/x",
        "https://host.example/?page=2&password=",
        "rs=0:di=01;34:*.key=00;36",
        "unix:path=/run/user/1000/bus,guid=8",
        "ada:pw@host.example",
        "://",
        "",
    ] {
        assert!(!are_given_by(b"SOME_URL", value.as_bytes()), "{value}");
    }
}

#[test]
fn every_entry_of_the_tables_of_names_makes_a_credential() {
    for part in CREDENTIAL {
        for name in [part.to_string(), format!("MY{part}S"), part.to_lowercase()] {
            assert!(is_credential(name.as_bytes()), "{name}");
        }
    }
    for word in CREDENTIAL_WORD {
        for name in [
            format!("MY_{word}"),
            format!("{word}_2"),
            format!("my_{}", word.to_lowercase()),
        ] {
            assert!(is_credential(name.as_bytes()), "{name}");
        }
        assert!(
            !is_credential(format!("Q{word}Q").as_bytes()),
            "{word} is no word there"
        );
    }
    for word in CREDENTIAL_LAST_WORD {
        for name in [
            format!("MY_{word}"),
            word.to_string(),
            format!("MY_{word}_2"),
        ] {
            assert!(is_credential(name.as_bytes()), "{name}");
        }
        assert!(!is_credential(format!("{word}_PATH").as_bytes()), "{word}");
    }
    for word in CREDENTIAL_UNLESS_VOLATILE {
        for name in [format!("MY_{word}"), format!("MY_{word}_x")] {
            assert!(is_credential(name.as_bytes()), "{name}");
        }
        assert!(!is_credential(format!("TERM_{word}").as_bytes()), "{word}");
    }
    for name in CREDENTIAL_NAME {
        assert!(is_credential(name.as_bytes()), "{name}");
        assert!(is_credential(name.to_lowercase().as_bytes()), "{name}");
    }
    for name in NO_CREDENTIAL {
        assert!(!is_credential(name.as_bytes()), "{name}");
    }
    for name in [
        "BW_SESSION",
        "OP_SESSION_my",
        "FASTLANE_SESSION",
        "OPENAPI_MCP_HEADERS",
        "ANTHROPIC_CUSTOM_HEADERS",
        "GITHUB_BEARER",
        "SSH_KEYFILE",
        "userPwd",
        "GOOGLE_APPLICATION_CREDENTIALS",
        // Names the owner of the passwords.
        "PASSWORD_STORE_DIR",
        "BORG_PASSCOMMAND",
        "SLACK_WEBHOOK_URL",
        "S3KEY",
        "DB2PWD",
        "AWSKey",
        "SMTPPass",
        "DB_PW",
    ] {
        assert!(is_credential(name.as_bytes()), "{name}");
    }
}

#[test]
fn names_that_only_look_like_credentials_are_none() {
    for name in [
        "KEYBOARD_LAYOUT",
        "MONKEY",
        "HEADERS_PATH",
        "HEADER_SEARCH_PATHS",
        "AUTHOR",
        "PATH",
        "PATTERN",
        "COMPASS",
        "SPINNER",
        "SHIPPING",
        "PROFILE",
        "AWS_REGION",
        "DOCKER_HOST",
        // They name a program that asks the person, and every app has its own.
        "GIT_ASKPASS",
        "SSH_ASKPASS",
        // Of terminals, shells and desktops.
        "ATUIN_SESSION",
        "XDG_SESSION_ID",
        "XDG_SESSION_TYPE",
        "SESSION_MANAGER",
        "TMUX",
        "TMUX_PANE",
        "ZELLIJ_SESSION_NAME",
        "DBUS_SESSION_BUS_ADDRESS",
        "DESKTOP_SESSION",
        "GDMSESSION",
        "WINDOWID",
        "TERM_SESSION_ID",
        "ITERM_SESSION_ID",
        "MCFLY_SESSION_ID",
        "WT_SESSION",
        "GNOME_SHELL_SESSION_MODE",
        "WARP_IS_LOCAL_SHELL_SESSION",
        "SECURITYSESSIONID",
        "OPENCODE_RUN_ID",
        "__MISE_SESSION",
    ] {
        assert!(!is_credential(name.as_bytes()), "{name}");
    }
}

#[test]
fn every_well_known_token_gives_rights_wherever_it_is_in_a_value() {
    for (prefix, length) in tokens() {
        let rest = "aB3".repeat(20);
        let token = match prefix {
            JWT => format!("{prefix}hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"),
            _ => format!("{prefix}{rest}"),
        };
        for value in [
            token.clone(),
            format!("{{\"a\":\"{token}\"}}"),
            format!("x {token} y"),
            format!("/{token}/"),
        ] {
            assert!(has_credential(value.as_bytes()), "{value}");
        }
        if length > 0 {
            assert!(
                !has_credential(format!("{prefix}ab").as_bytes()),
                "{prefix}"
            );
            assert!(!has_credential(format!("x{token}").as_bytes()), "{prefix}");
        }
        assert!(begins_like_token(&format!("{prefix}ab")), "{prefix}");
    }
    for value in [
        "sk-learn",
        "/opt/sk-build/bin",
        "npm_config_node_options",
        "hf_home",
        "SG.md",
        "eyJust.a.name",
        "fc-list",
        "task-0123456789abcdef0123456789",
    ] {
        assert!(!has_credential(value.as_bytes()), "{value}");
    }
}

#[test]
fn headers_settings_logins_keys_and_secret_addresses_in_a_value_give_rights() {
    let addresses = SECRET_ADDRESSES.iter();
    for address in addresses {
        let value = format!("https://{address}T0/B0/x");
        assert!(has_credential(value.as_bytes()), "{value}");
    }
    for name in CREDENTIAL_SETTING {
        let name = name.to_lowercase();
        for value in [
            format!("https://h.example/?a=1&{name}=x"),
            format!("host=h {name}=x"),
            format!("{name} = x"),
            format!("{{\"{name}\": \"x\"}}"),
        ] {
            assert!(has_credential(value.as_bytes()), "{value}");
        }
    }
    for value in [
        "Bearer x",
        "bearer abc.def",
        "Basic YTpi",
        r#"{"Authorization":"Bearer x"}"#,
        r#"{"Authorization": "x"}"#,
        r#"{\"authorization\":\"x\"}"#,
        r#"{"X":"Bearer x","Y":"z"}"#,
        "Authorization: Basic YTpi",
        "eyJhbGciOi.eyJone.sig",
        "Authorization=Bearer x",
        "X-Api-Key: x",
        "Accept: x, PRIVATE-TOKEN: x",
        "host=db user=a password=one",
        "host=db password='one two'",
        "password = one",
        "host=h pwd=x",
        "--token=x --verbose",
        "--token x",
        "serve --api-key x --verbose",
        "{'token': 'x'}",
        "Token x",
        "postgres://a:p/w@h",
        "https://h.example/api?code=x",
        "a:pw@tcp(h:3306)/d",
        "a:pw@unix(/run/mysqld.sock)/d",
        "a:pw@/d",
        "a/pw@h",
        "a/pw@//oracle:1521/x",
        "jdbc:oracle:thin:a/pw@h:1521:x",
        "SharedAccessSignature=sv",
        "BlobEndpoint=https://h;SharedAccessSignature=sv=1&sig=x",
        "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=x",
        "AccountKey=x",
        "accountkey=x",
        "Account Key=x",
        "https://h.example/?sig=x",
        "https://h.example/#access_token=x",
        "HTTP://x@h.example",
        "-----BEGIN PRIVATE KEY-----\nx",
        "-----BEGIN RSA PRIVATE KEY-----\nx",
        "a\n-----BEGIN PGP PRIVATE KEY BLOCK-----\nx",
    ] {
        assert!(has_credential(value.as_bytes()), "{value}");
    }
    for value in [
        "Basic usage of this tool",
        "the bearer of good news",
        "Bearer",
        "Bearer ",
        "host=db user=a",
        "password=",
        "password=&x=1",
        r#"{"password":""}"#,
        "monkey=1",
        "--key --verbose",
        "--monkey x",
        "{'password': ''}",
        "a.key=1",
        "key:1",
        "ada@host.example",
        "git@host.example:ada/x.git",
        "owner/action@v4",
        "scope/package@1.2.3",
        "@scope/package@latest",
        "/home/ada/x@host",
        "-----BEGIN CERTIFICATE-----\nx",
        "-----BEGIN PUBLIC KEY-----\nx",
        "https://host.example/services/x",
        "error=01;31:warning=01;35:note=01;36",
        "\\u@\\h: \\w",
        "unix:path=/run/user/1000/bus",
        "~/.config:/etc/keys",
        "en_US.UTF-8",
    ] {
        assert!(!has_credential(value.as_bytes()), "{value}");
    }
}
