-- Which secret bought an access token, so that the token goes with it; unknown for rows from before.
ALTER TABLE oauth_tokens
    ADD COLUMN secret    text COLLATE "C",
    -- The secret was replaced or deleted: no token is kept here any more.
    ADD COLUMN forgotten boolean NOT NULL DEFAULT false;
