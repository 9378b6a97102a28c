-- Which secret bought an access token, so that the token goes with it; unknown for rows from before.
ALTER TABLE oauth_tokens ADD COLUMN secret TEXT;
-- The secret was replaced or deleted: no token is kept here any more.
ALTER TABLE oauth_tokens ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;
