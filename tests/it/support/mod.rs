//! What several tests share.

pub(crate) mod counterparts;
pub(crate) mod database;
pub(crate) mod fake_mcp;
pub(crate) mod process;
pub(crate) mod product;
pub(crate) mod world;

/// The same tests on both stores: each is an async function that takes a database.
macro_rules! on_both_stores {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test] async fn $name() {
                super::$name(crate::support::database::Database::sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test] async fn $name() {
                super::$name(crate::support::database::Database::postgres().await).await;
            })+
        }
    };
}
pub(crate) use on_both_stores;
