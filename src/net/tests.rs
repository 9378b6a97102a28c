use http::Method;

use super::resolver::admit;
use super::*;

fn egress(allow: &[&str]) -> Egress {
    Egress::new(EgressAllow::parse(allow.iter().copied()).unwrap())
}

#[track_caller]
fn check(allow: &[&str], url: &str) -> Result<(), EgressRefusal> {
    egress(allow).check(&Url::parse(url).unwrap())
}

const FORBIDDEN: &[&str] = &[
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "017700000001",
    "0",
    "0.0.0.0",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "api.localhost",
    "10.1.2.3",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "100.64.0.1",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "240.0.0.1",
    "[::]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::1]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:7f00:1::]",
    "[2001:0:808:808:0:0:80ff:fffe]",
    "[2001:470:1::5efe:7f00:1]",
    "[2001:470:1:2:200:5efe:a9fe:a9fe]",
    "[2001:db8::1]",
    "[3fff::1]",
    "192.0.2.1",
    "198.51.100.7",
    "203.0.113.9",
    "127.0.0.1.",
    "[fe80::1]",
    "[fec0::1]",
    "[fd00:ec2::254]",
    "[fc00::1]",
    "[ff02::1]",
    "[100::1]",
    "[::ffff:0:127.0.0.1]",
    "127。0。0。1",
    "①②⑦.0.0.1",
];

#[test]
fn field_a131_every_spelling_of_a_forbidden_address_is_refused() {
    for host in FORBIDDEN {
        for scheme in ["http", "https"] {
            let refusal = check(&[], &format!("{scheme}://{host}/mcp")).expect_err(host);
            assert!(matches!(refusal, EgressRefusal::Address { .. }), "{host}: {refusal:?}");
        }
    }
}

#[test]
fn field_a130_a_public_address_may_stand_in_every_form_that_a_forbidden_one_may_not() {
    for form in [
        "[::V4]",
        "[::ffff:V4]",
        "[::ffff:0:V4]",
        "[64:ff9b::V4]",
        "[2002:HEX::1]",
        "[2001:0:HEX:0:0:f7f7:fbfb]",
        "[2001:0:808:808:0:0:TURNED]",
        "[2606:4700::5efe:V4]",
        "[2606:4700::200:5efe:V4]",
    ] {
        let judged = |v4: &str| {
            let [a, b, c, d] = v4.parse::<std::net::Ipv4Addr>().unwrap().octets();
            let hex = format!("{a:02x}{b:02x}:{c:02x}{d:02x}");
            let turned = format!("{:02x}{:02x}:{:02x}{:02x}", !a, !b, !c, !d);
            let host = form.replace("V4", v4).replace("HEX", &hex).replace("TURNED", &turned);
            check(&[], &format!("https://{host}/"))
        };
        assert_eq!(judged("8.8.4.4"), Ok(()), "{form}");
        for (v4, kind) in [
            ("127.0.0.1", "loopback"),
            ("169.254.169.254", "link-local"),
            ("10.0.0.1", "private"),
            ("100.100.100.200", "carrier-shared"),
            ("168.63.129.16", "metadata"),
            ("224.0.0.1", "multicast"),
        ] {
            let refusal = judged(v4).expect_err(form);
            assert!(
                matches!(refusal, EgressRefusal::Address { kind: found, .. } if found == kind),
                "{form} {refusal:?}"
            );
        }
    }
}

#[test]
fn an_address_that_the_operator_names_in_a_setting_may_be_private_and_nothing_beside_it() {
    for (named, other) in [
        ("http://10.1.2.3:8080/keys", "http://10.1.2.4/"),
        ("http://[fd00::1]/keys", "http://[fd00::2]/"),
        ("http://idp.internal./keys", "http://other.internal/"),
        ("http://localhost/keys", "http://a.localhost/"),
    ] {
        let url = |text: &str| Url::parse(text).unwrap();
        let egress = egress(&[]).and_named(&url(named));
        assert_eq!(egress.check(&url(named)), Ok(()), "{named}");
        assert!(egress.check(&url(other)).is_err(), "{other}");
    }
}

#[test]
fn public_hosts_pass_over_https_only() {
    for host in ["example.com", "8.8.8.8", "[2606:4700::1111]", "[64:ff9b::808:808]", "172.32.0.1", "100.128.0.1"] {
        assert_eq!(check(&[], &format!("https://{host}/mcp")), Ok(()), "{host}");
        assert!(matches!(check(&[], &format!("http://{host}/")), Err(EgressRefusal::PlainHttp(_))), "{host}");
    }
}

#[test]
fn user_info_and_other_schemes_are_refused_even_for_allowed_hosts() {
    for url in ["https://user@models.internal/", "https://:p@models.internal/", "https://a:b@models.internal/"] {
        assert_eq!(check(&["models.internal"], url), Err(EgressRefusal::UserInfo), "{url}");
    }
    for url in ["ftp://models.internal/", "file:///etc/passwd", "data:text/plain,a", "ws://models.internal/"] {
        assert!(matches!(check(&["models.internal"], url), Err(EgressRefusal::Scheme(_))), "{url}");
    }
}

#[test]
fn what_the_operator_names_passes_over_plain_http_and_nothing_beside_it() {
    let allow = ["127.0.0.0/8", "models.internal", "*.svc.internal", "fd00::/8", "[::1]"];
    for url in [
        "http://127.0.0.1:9001/mcp",
        "http://[::ffff:127.0.0.1]/",
        "http://localhost:1/",
        "http://models.internal/",
        "http://MODELS.internal./",
        "http://a.b.svc.internal/",
        "http://[fd12::1]/",
        "http://[::1]/",
    ] {
        assert_eq!(check(&allow, url), Ok(()), "{url}");
    }
    for url in
        ["http://10.0.0.1/", "http://xmodels.internal/", "http://svc.internal/", "http://models.internal.evil.com/"]
    {
        assert!(check(&allow, url).is_err(), "{url}");
    }
}

#[test]
fn an_allow_list_with_nonsense_is_refused() {
    for bad in ["", "a b", "10.0.0.0/40", "http://host", "host/path", "*", "a*b.c"] {
        assert_eq!(EgressAllow::parse([bad]).unwrap_err(), AllowFault(bad.to_owned()), "{bad}");
    }
}

#[test]
fn of_the_addresses_of_a_name_only_the_public_ones_are_dialled() {
    let found = || vec!["127.0.0.1:0".parse().unwrap(), "8.8.8.8:0".parse().unwrap()];
    let none = EgressAllow::default();
    assert_eq!(admit(&none, "rebind.example", found()).unwrap(), vec!["8.8.8.8:0".parse().unwrap()]);
    let inside = vec!["10.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()];
    assert!(matches!(admit(&none, "rebind.example", inside.clone()), Err(EgressRefusal::Address { .. })));
    assert!(matches!(admit(&none, "gone.example", vec![]), Err(EgressRefusal::NoAddress(_))));
    let named = EgressAllow::parse(["rebind.example"]).unwrap();
    assert_eq!(admit(&named, "rebind.example", inside.clone()).unwrap(), inside);
}

#[tokio::test]
async fn a_name_that_resolves_to_loopback_is_refused_by_the_client_itself() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = egress(&[]).client(Duration::from_secs(5), None).unwrap();
    let url = Url::parse(&format!("https://localhost:{port}/")).unwrap();
    assert!(matches!(client.request(Method::GET, &url), Err(EgressRefusal::Address { kind: "loopback", .. })));
    // Without the judge of addresses there is still the judge of what they lead to.
    let fault = client.http.get(url).send().await.unwrap_err();
    assert!(fault.is_connect(), "{fault:?}");
    assert!(format!("{fault:?}").contains("loopback"), "{fault:?}");
}
