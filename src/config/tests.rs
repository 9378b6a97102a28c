//! Settings: what is taken, what is refused by name, what is never printed.

use std::collections::HashMap;

use super::unknown::warn_unknown;
use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::ExposeSecret;

fn good() -> HashMap<&'static str, String> {
    HashMap::from([
        ("COUNTERSIGN_DATABASE_URL", "postgres://cs:hunter2@db:5432/cs?password=hunter3".to_owned()),
        ("COUNTERSIGN_JWT_HS256_SECRET", "0123456789abcdef0123456789abcdef".to_owned()),
        ("COUNTERSIGN_JWT_ISSUER", "https://issuer".to_owned()),
        ("COUNTERSIGN_JWT_AUDIENCE", "countersign".to_owned()),
        ("COUNTERSIGN_MASTER_KEYS", format!("k1:{}", STANDARD.encode([1; 32]))),
    ])
}

fn read(values: &HashMap<&'static str, String>) -> Result<Config, ConfigFaults> {
    Config::from_env(&|name: &str| values.get(name).cloned())
}

fn faulty(values: &HashMap<&'static str, String>) -> Vec<&'static str> {
    read(values).map_or_else(|faults| faults.0.iter().map(|fault| fault.setting).collect(), |_| Vec::new())
}

#[test]
fn a_server_with_the_least_settings_gets_the_defaults_of_the_contract() {
    let config = read(&good()).unwrap();
    assert_eq!(config.listen.to_string(), "0.0.0.0:8080");
    assert_eq!((config.lease_s, config.max_running, config.tenant_max_running, config.drain_s), (15, 1000, 100, 30));
    assert_eq!(config.tenant_max_calls, 200);
    assert_eq!((config.wake, config.log, config.max_body_bytes), (Wake::Notify, LogFormat::Json, 4 * 1024 * 1024));
    assert_eq!(config.auth.tenant_claim, "tenant");
    assert!(!config.allow_scripted_models);
    assert_eq!(config.keep, KeepDays { events: 30, runs: 90, receipts: 400 });
}

#[test]
fn all_missing_settings_are_named_at_once() {
    assert_eq!(
        faulty(&HashMap::new()),
        [
            "COUNTERSIGN_DATABASE_URL",
            "COUNTERSIGN_JWT_HS256_SECRET",
            "COUNTERSIGN_JWT_ISSUER",
            "COUNTERSIGN_JWT_AUDIENCE",
            "COUNTERSIGN_MASTER_KEYS"
        ]
    );
}

#[test]
fn every_wrong_value_is_refused_by_the_name_of_its_setting() {
    for (setting, value) in [
        ("COUNTERSIGN_DATABASE_URL", "mysql://x"),
        ("COUNTERSIGN_DATABASE_URL", "sqlite:"),
        ("COUNTERSIGN_LISTEN", "8080"),
        ("COUNTERSIGN_JWT_HS256_SECRET", "short"),
        ("COUNTERSIGN_JWKS_URL", "ftp://x"),
        ("COUNTERSIGN_MASTER_KEYS", "k1:AAAA"),
        ("COUNTERSIGN_EGRESS_ALLOW", "10.0.0.0/8,what ever"),
        ("COUNTERSIGN_ALLOW_SCRIPTED_MODELS", "yes"),
        ("COUNTERSIGN_LEASE_S", "1"),
        ("COUNTERSIGN_LEASE_S", "-1"),
        ("COUNTERSIGN_MAX_RUNNING", "0"),
        ("COUNTERSIGN_TENANT_MAX_RUNNING", "many"),
        ("COUNTERSIGN_TENANT_MAX_CALLS", "0"),
        ("COUNTERSIGN_WAKE", "nats://queue:4222"),
        ("COUNTERSIGN_DRAIN_S", "1.5"),
        ("COUNTERSIGN_KEEP_EVENTS_D", "0"),
        ("COUNTERSIGN_KEEP_RUNS_D", "29"),
        ("COUNTERSIGN_KEEP_RECEIPTS_D", "89"),
        ("COUNTERSIGN_KEEP_RECEIPTS_D", "36501"),
        ("COUNTERSIGN_LOG", "xml"),
        ("COUNTERSIGN_CORS_ORIGINS", "https://a.example,*"),
        ("COUNTERSIGN_CORS_ORIGINS", "https://a.example/"),
        ("COUNTERSIGN_MAX_BODY_BYTES", "12"),
        ("COUNTERSIGN_JWT_ISSUER", "\u{fffd}"),
    ] {
        let mut values = good();
        values.insert(setting, value.to_owned());
        assert_eq!(faulty(&values), [setting], "{value}");
    }
    let mut values = good();
    values.insert("COUNTERSIGN_JWKS_URL", "https://issuer/keys".to_owned());
    values.insert("COUNTERSIGN_JWKS_FILE", "/keys.json".to_owned());
    assert_eq!(faulty(&values), ["COUNTERSIGN_JWKS_FILE"]);
}

#[test]
fn no_secret_is_printed_anywhere() {
    let mut values = good();
    let config = read(&values).unwrap();
    values.insert("COUNTERSIGN_LEASE_S", "0".to_owned());
    let printed = format!("{config:?}\n{}", Config::report(&|name: &str| values.get(name).cloned()));
    for hidden in ["hunter2", "hunter3", "0123456789abcdef", &STANDARD.encode([1; 32])] {
        assert!(!printed.contains(hidden), "{hidden} in {printed}");
    }
    for setting in SETTINGS {
        assert!(printed.contains(&format!("{} = ", setting.name)), "{} is not printed", setting.name);
    }
    assert!(printed.contains("COUNTERSIGN_LEASE_S: \"0\" is not a whole number from 2 to 3600"));
}

#[test]
fn unknown_variables_are_named() {
    let names = ["PATH", "COUNTERSIGN_LISTEN", "COUNTERSIGN_LISTEM"].map(str::to_owned);
    assert_eq!(warn_unknown(names.into_iter()), ["COUNTERSIGN_LISTEM is not a setting of this version"]);
}

#[test]
fn dev_makes_its_keys_once_and_takes_nothing_of_production() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut production = good();
    production.insert("COUNTERSIGN_LEASE_S", "3".to_owned());
    let dev = || Config::dev(&data, listen, &|name: &str| production.get(name).cloned());
    let (first, second) = (dev().unwrap(), dev().unwrap());
    let secret = |config: &Config| config.auth.hs256.as_ref().unwrap().expose_secret().to_owned();
    assert_eq!(secret(&first), secret(&second));
    assert_ne!(secret(&first), production["COUNTERSIGN_JWT_HS256_SECRET"]);
    assert!(first.database_url.expose_secret().starts_with("sqlite:"));
    assert_eq!((first.lease_s, first.log, first.allow_scripted_models), (3, LogFormat::Text, true));

    use std::os::unix::fs::PermissionsExt as _;
    let key = data.join("jwt-secret");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(dev().unwrap_err().0[0].setting, "COUNTERSIGN_JWT_HS256_SECRET");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&key, "").unwrap();
    assert!(dev().unwrap_err().to_string().contains("holds no key"));
}
