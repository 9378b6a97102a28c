//! Access tokens, and whose turn it is to get one.

use async_trait::async_trait;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::{PostgresStore, SteadyPostgres};
use crate::run::ids::TenantId;
use crate::store::StoreError;
use crate::store::tokens::{FORGET_TOKEN_MS, SealedToken, TokenKey, TokenStore, TokenTurn};

#[async_trait]
impl TokenStore for SteadyPostgres {
    async fn token_turn(
        &self,
        key: &TokenKey,
        seen: i64,
        holder: Uuid,
        lease_ms: i64,
    ) -> Result<TokenTurn, StoreError> {
        let store = self.now();
        self.within(&store, token_turn(&store, key, seen, holder, lease_ms)).await
    }

    async fn token_keep(&self, key: &TokenKey, holder: Uuid, token: &SealedToken) -> Result<bool, StoreError> {
        let store = self.now();
        self.within(&store, token_keep(&store, key, holder, token)).await
    }

    async fn token_waive(&self, key: &TokenKey, holder: Uuid) -> Result<(), StoreError> {
        let store = self.now();
        self.within(&store, token_waive(&store, key, holder)).await
    }

    async fn token_forget(&self, key_id: &str) -> Result<u64, StoreError> {
        let store = self.now();
        self.within(&store, token_forget(&store, key_id)).await
    }
}

async fn token_turn(
    store: &PostgresStore,
    key: &TokenKey,
    seen: i64,
    holder: Uuid,
    lease_ms: i64,
) -> Result<TokenTurn, StoreError> {
    let taken: Option<i64> = sqlx::query_scalar(
        "INSERT INTO oauth_tokens AS t (tenant_id, identity, version, expires_at, holder, lease_until, secret) \
         VALUES ($1, $2, 0, 0, $3, now_ms() + $4, $6) \
         ON CONFLICT (tenant_id, identity) DO UPDATE SET holder = excluded.holder, \
           lease_until = excluded.lease_until, secret = excluded.secret \
         WHERE (t.version <= $5 OR t.expires_at <= now_ms()) AND t.lease_until <= now_ms() \
         RETURNING version",
    )
    .bind(key.tenant.as_str())
    .bind(key.identity.as_slice())
    .bind(holder)
    .bind(lease_ms)
    .bind(seen)
    .bind(&key.secret)
    .fetch_optional(&store.pool)
    .await?;
    if let Some(version) = taken {
        return Ok(TokenTurn::Taken(version));
    }
    let row = sqlx::query(
        "SELECT version, key_id, sealed, expires_at - now_ms() AS expires_in, lease_until - now_ms() AS busy \
         FROM oauth_tokens WHERE tenant_id = $1 AND identity = $2",
    )
    .bind(key.tenant.as_str())
    .bind(key.identity.as_slice())
    .fetch_optional(&store.pool)
    .await?;
    // It may have gone, or become free, between the two statements: the asker comes again.
    let Some(row) = row else { return Ok(TokenTurn::Busy(0)) };
    let (version, expires_in_ms): (i64, i64) = (row.try_get("version")?, row.try_get("expires_in")?);
    let kept: (Option<String>, Option<Vec<u8>>) = (row.try_get("key_id")?, row.try_get("sealed")?);
    Ok(match kept {
        (Some(key_id), Some(sealed)) if version > seen && expires_in_ms > 0 => {
            TokenTurn::Newer(SealedToken { version, key_id, sealed, expires_in_ms })
        }
        _ => TokenTurn::Busy(row.try_get("busy")?),
    })
}

async fn token_keep(
    store: &PostgresStore,
    key: &TokenKey,
    holder: Uuid,
    token: &SealedToken,
) -> Result<bool, StoreError> {
    let mut tx = store.pool.begin().await?;
    let kept = sqlx::query(
        "UPDATE oauth_tokens SET version = $4, key_id = CASE WHEN forgotten THEN NULL ELSE $5::text END, \
           sealed = CASE WHEN forgotten THEN NULL ELSE $6::bytea END, \
           expires_at = now_ms() + CASE WHEN forgotten THEN 0 ELSE $7::bigint END, holder = NULL, lease_until = 0 \
         WHERE tenant_id = $1 AND identity = $2 AND holder = $3 AND version = $4 - 1",
    )
    .bind(key.tenant.as_str())
    .bind(key.identity.as_slice())
    .bind(holder)
    .bind(token.version)
    .bind(&token.key_id)
    .bind(&token.sealed)
    .bind(token.expires_in_ms)
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "DELETE FROM oauth_tokens WHERE tenant_id = $1 AND expires_at < now_ms() - $2 AND lease_until < now_ms() - $2",
    )
    .bind(key.tenant.as_str())
    .bind(FORGET_TOKEN_MS)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(kept.rows_affected() == 1)
}

async fn token_waive(store: &PostgresStore, key: &TokenKey, holder: Uuid) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE oauth_tokens SET holder = NULL, lease_until = 0 WHERE tenant_id = $1 AND identity = $2 AND holder = $3",
    )
    .bind(key.tenant.as_str())
    .bind(key.identity.as_slice())
    .bind(holder)
    .execute(&store.pool)
    .await?;
    Ok(())
}

async fn token_forget(store: &PostgresStore, key_id: &str) -> Result<u64, StoreError> {
    // The version stays: whoever has seen it asks for a later one.
    let gone = sqlx::query(
        "UPDATE oauth_tokens SET key_id = NULL, sealed = NULL, expires_at = LEAST(expires_at, now_ms()) \
         WHERE key_id <> $1",
    )
    .bind(key_id)
    .execute(&store.pool)
    .await?;
    Ok(gone.rows_affected())
}

/// Forgets what a secret bought, in the transaction that replaces or deletes it: nobody is given such a token any more,
/// and one that is on its way is not kept.
pub(super) async fn tokens_of_secret_forget(
    tx: &mut PgConnection,
    tenant: &TenantId,
    secret: &str,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE oauth_tokens SET key_id = NULL, sealed = NULL, expires_at = LEAST(expires_at, now_ms()), \
           forgotten = secret IS NOT NULL \
         WHERE tenant_id = $1 AND (secret = $2 OR secret IS NULL) AND GREATEST(expires_at, lease_until) > now_ms()",
    )
    .bind(tenant.as_str())
    .bind(secret)
    .execute(tx)
    .await?;
    Ok(())
}
