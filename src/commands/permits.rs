//! Which workers may have which tools, as the operator says.

use std::collections::BTreeMap;

use crate::run::untaken::Violation;

/// What of a worker the issuer of its token vouches for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The identity that it runs under.
    pub identity: Option<String>,
    /// The digest of its image.
    pub image_digest: Option<String>,
}

/// Who may have a tool; an empty list permits everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    /// Workload identities.
    pub identities: Vec<String>,
    /// Image digests.
    pub image_digests: Vec<String>,
}

/// Who may have which tools. A tool that is not named is anybody's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permits(pub BTreeMap<String, Permit>);

impl Permits {
    /// What the operator does not permit of a worker that asks for a tool.
    pub(super) fn violation(&self, tool: &str, workload: &Workload) -> Option<Violation> {
        let permit = self.0.get(tool)?;
        let lacks =
            |list: &[String], has: Option<&String>| !list.is_empty() && has.is_none_or(|has| !list.contains(has));
        if lacks(&permit.identities, workload.identity.as_ref()) {
            Some(Violation::WorkloadIdentity)
        } else if lacks(&permit.image_digests, workload.image_digest.as_ref()) {
            Some(Violation::ImageDigest)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b242_a_tool_that_the_operator_names_is_for_whom_it_permits() {
        let permit = Permit { identities: vec!["pay".to_owned()], image_digests: vec!["sha256:a".to_owned()] };
        let permits = Permits(BTreeMap::from([("payments.process".to_owned(), permit)]));
        let of = |identity: &str, digest: &str| Workload {
            identity: Some(identity.to_owned()),
            image_digest: Some(digest.to_owned()),
        };
        let tool = "payments.process";
        assert_eq!(permits.violation(tool, &of("pay", "sha256:a")), None);
        assert_eq!(permits.violation(tool, &of("ship", "sha256:a")), Some(Violation::WorkloadIdentity));
        assert_eq!(permits.violation(tool, &of("pay", "sha256:b")), Some(Violation::ImageDigest));
        assert_eq!(permits.violation(tool, &Workload::default()), Some(Violation::WorkloadIdentity));
        assert_eq!(permits.violation("mail.send", &Workload::default()), None);
    }
}
