//! What a model's protocol takes of pictures and files in messages. What it does not take is refused when a run is
//! created: a provider would refuse every request of the run.
//!
//! Sources: chat completions (content parts `image_url`, `file` with `file_id` or `file_data`; of the user only) and
//! messages (blocks `image`, `document` with a source by address, base64, text or id; of the user only).

use super::message::{Content, Role, Source};
use super::spec::Provider;

/// Why a provider cannot be told this piece of a message; `None`: it can.
pub fn refusal(provider: Provider, role: Role, content: &Content) -> Option<&'static str> {
    let is_file = match content {
        Content::Image { .. } => false,
        Content::File { .. } => true,
        Content::Text { .. } | Content::Reasoning { .. } | Content::ToolCall { .. } | Content::ToolResult { .. } => {
            return None;
        }
    };
    if role != Role::User {
        return Some("only a message of the user takes pictures and files");
    }
    let (Content::Image { source } | Content::File { source, .. }) = content else { return None };
    match (provider, is_file, source) {
        (Provider::Openai, true, Source::Url { .. }) => {
            Some("this model's protocol takes files as `data` or `file_id`, not by address")
        }
        (Provider::Anthropic, true, Source::Data { media_type, .. }) if !is_document(media_type) => {
            Some("this model's protocol takes files of the types application/pdf and text/plain")
        }
        (_, false, Source::Id { .. }) => Some("a picture comes as `url` or `data`"),
        (Provider::Openai | Provider::Anthropic | Provider::Scripted, _, _) => None,
    }
}

fn is_document(media_type: &str) -> bool {
    matches!(media_type, "application/pdf" | "text/plain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_protocol_does_not_take_is_known_before_it_is_asked() {
        let url = || Source::Url { url: "https://a.example/x".to_owned() };
        let data = |kind: &str| Source::Data { media_type: kind.to_owned(), data: "AAAA".to_owned() };
        let id = || Source::Id { file_id: "file_1".to_owned() };
        let file = |source| Content::File { name: None, source };
        let image = |source| Content::Image { source };
        for (content, openai, anthropic) in [
            (image(url()), true, true),
            (image(data("image/png")), true, true),
            (image(id()), false, false),
            (file(url()), false, true),
            (file(data("application/pdf")), true, true),
            (file(data("text/csv")), true, false),
            (file(id()), true, true),
        ] {
            let takes = |provider| refusal(provider, Role::User, &content).is_none();
            assert_eq!((takes(Provider::Openai), takes(Provider::Anthropic)), (openai, anthropic), "{content:?}");
            assert!(refusal(Provider::Openai, Role::Assistant, &content).is_some());
        }
        assert_eq!(refusal(Provider::Openai, Role::System, &Content::Text { text: "x".to_owned() }), None);
    }
}
