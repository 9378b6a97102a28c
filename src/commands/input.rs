//! What a new run's model is told first: the caller's messages, each piece in a form that the model's protocol takes.

use url::Url;

use super::faults::Faults;
use super::request::{InputContent, InputMessage, InputPart, InputRole, RunInput};
use crate::run::media;
use crate::run::message::{Content, Role, Source};
use crate::run::spec::Provider;
use crate::run::tool_result::readable_picture;

/// The messages of the input.
pub(super) fn check_input(input: RunInput, provider: Provider, faults: &mut Faults) -> Vec<(Role, Vec<Content>)> {
    let messages = match input {
        RunInput::Text(text) => {
            faults.require(!text.is_empty(), "/input", "must not be empty");
            return vec![(Role::User, vec![Content::Text { text }])];
        }
        RunInput::Messages(messages) => messages,
    };
    faults.require(!messages.is_empty(), "/input", "must not be empty");
    let read = |(at, message): (usize, InputMessage)| {
        let role = match message.role {
            InputRole::System => Role::System,
            InputRole::User => Role::User,
            InputRole::Assistant => Role::Assistant,
        };
        let content = match message.content {
            InputContent::Text(text) => vec![Content::Text { text }],
            InputContent::Parts(parts) => {
                faults.require(!parts.is_empty(), &format!("/input/{at}/content"), "must not be empty");
                let parts = parts.into_iter().enumerate();
                parts
                    .filter_map(|(nth, part)| {
                        read_part(part, role, provider, &format!("/input/{at}/content/{nth}"), faults)
                    })
                    .collect()
            }
        };
        (role, content)
    };
    messages.into_iter().enumerate().map(read).collect()
}

fn read_part(part: InputPart, role: Role, provider: Provider, at: &str, faults: &mut Faults) -> Option<Content> {
    let content = match part {
        InputPart::Text { text } => Content::Text { text },
        InputPart::Image { url, data, media_type } => {
            Content::Image { source: image_of(url, data, media_type, at, faults)? }
        }
        InputPart::File { name, url, data, media_type, file_id } => {
            let source = match (url, data, file_id) {
                (Some(url), None, None) => Source::Url { url: address_of(url, at, faults)? },
                (None, Some(data), None) => {
                    let Some(media_type) = media_type else {
                        faults.add(format!("{at}/media_type"), "is required beside `data`");
                        return None;
                    };
                    Source::Data { media_type, data: base64_of(&data, at, faults)? }
                }
                (None, None, Some(file_id)) if !file_id.is_empty() => Source::Id { file_id },
                _ => {
                    faults.add(at, "needs exactly one of `url`, `data` and `file_id`");
                    return None;
                }
            };
            Content::File { name, source }
        }
    };
    if let Some(why) = media::refusal(provider, role, &content) {
        faults.add(at, why);
        return None;
    }
    Some(content)
}

fn image_of(
    url: Option<String>,
    data: Option<String>,
    media_type: Option<String>,
    at: &str,
    faults: &mut Faults,
) -> Option<Source> {
    match (url, data) {
        (Some(url), None) => address_of(url, at, faults).map(|url| Source::Url { url }),
        (None, Some(data)) => {
            let Some(picture) = readable_picture(&data) else {
                faults.add(format!("{at}/data"), "is no PNG, JPEG, GIF or WebP in base64 of at most 5 MiB");
                return None;
            };
            if media_type.is_some_and(|declared| declared != picture.media_type) {
                faults.add(format!("{at}/media_type"), format!("the data is {}", picture.media_type));
            }
            Some(Source::Data { media_type: picture.media_type, data: picture.data })
        }
        (Some(_), Some(_)) | (None, None) => {
            faults.add(at, "needs exactly one of `url` and `data`");
            None
        }
    }
}

/// An address that the provider reads; this server does not.
fn address_of(url: String, at: &str, faults: &mut Faults) -> Option<String> {
    let is_web = Url::parse(&url).is_ok_and(|url| matches!(url.scheme(), "https" | "http"));
    faults.require(is_web, &format!("{at}/url"), "must be an http(s) address");
    is_web.then_some(url)
}

fn base64_of(data: &str, at: &str, faults: &mut Faults) -> Option<String> {
    use base64::Engine as _;
    let data: String = data.split_ascii_whitespace().collect();
    let is_data = !data.is_empty() && base64::engine::general_purpose::STANDARD.decode(&data).is_ok();
    faults.require(is_data, &format!("{at}/data"), "is not base64");
    is_data.then_some(data)
}
