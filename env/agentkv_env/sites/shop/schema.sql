CREATE TABLE shop_review (
    id INTEGER PRIMARY KEY,
    product INTEGER NOT NULL,
    author TEXT NOT NULL,
    stars INTEGER NOT NULL CHECK (stars BETWEEN 1 AND 5),
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    written TEXT NOT NULL
);
CREATE INDEX shop_review_of_product ON shop_review (product);
CREATE TABLE shop_cart (
    id INTEGER PRIMARY KEY,
    product INTEGER NOT NULL,
    colour TEXT NOT NULL,
    size TEXT NOT NULL,
    cents INTEGER NOT NULL,
    quantity INTEGER NOT NULL,
    UNIQUE (product, colour, size, cents)
);
CREATE TABLE shop_later (
    id INTEGER PRIMARY KEY,
    product INTEGER NOT NULL,
    colour TEXT NOT NULL,
    size TEXT NOT NULL,
    cents INTEGER NOT NULL,
    quantity INTEGER NOT NULL,
    UNIQUE (product, colour, size, cents)
);
CREATE TABLE shop_seen (product INTEGER PRIMARY KEY, added INTEGER NOT NULL);
CREATE TABLE shop_alert (product INTEGER PRIMARY KEY, added INTEGER NOT NULL);
CREATE TABLE shop_reservation (product INTEGER PRIMARY KEY, place TEXT NOT NULL);
CREATE TABLE shop_question (
    id INTEGER PRIMARY KEY,
    product INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE TABLE shop_wish (product INTEGER PRIMARY KEY, added INTEGER NOT NULL);
CREATE TABLE shop_compare (product INTEGER PRIMARY KEY, added INTEGER NOT NULL);
CREATE TABLE shop_order (
    number INTEGER PRIMARY KEY,
    placed TEXT NOT NULL,
    status TEXT NOT NULL,
    recipient TEXT NOT NULL,
    street TEXT NOT NULL,
    place TEXT NOT NULL,
    postcode TEXT NOT NULL,
    shipping TEXT NOT NULL,
    payment TEXT NOT NULL,
    gift_wrap INTEGER NOT NULL,
    note TEXT NOT NULL,
    coupon TEXT NOT NULL,
    discount_cents INTEGER NOT NULL,
    shipping_cents INTEGER NOT NULL,
    total_cents INTEGER NOT NULL,
    slot TEXT NOT NULL,
    gift_card_cents INTEGER NOT NULL
);
CREATE TABLE shop_order_event (
    id INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    step TEXT NOT NULL,
    happened TEXT NOT NULL
);
CREATE TABLE shop_return (
    id INTEGER PRIMARY KEY,
    line INTEGER NOT NULL UNIQUE,
    reason TEXT NOT NULL,
    refund TEXT NOT NULL
);
CREATE TABLE shop_order_line (
    id INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    product INTEGER NOT NULL,
    colour TEXT NOT NULL,
    size TEXT NOT NULL,
    cents INTEGER NOT NULL,
    quantity INTEGER NOT NULL
);
CREATE TABLE shop_address (
    id INTEGER PRIMARY KEY,
    label TEXT NOT NULL,
    person TEXT NOT NULL,
    street TEXT NOT NULL,
    place TEXT NOT NULL,
    postcode TEXT NOT NULL
);
-- One row: the customer's account, and whether the customer is signed in.
CREATE TABLE shop_customer (
    name TEXT NOT NULL,
    email TEXT NOT NULL,
    phone TEXT NOT NULL,
    newsletter TEXT NOT NULL,
    coupon TEXT NOT NULL,
    signed_in INTEGER NOT NULL,
    plan TEXT NOT NULL,
    gift_cents INTEGER NOT NULL
);
CREATE TABLE shop_redeemed (code TEXT PRIMARY KEY);
CREATE TABLE shop_message (
    id INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    order_number TEXT NOT NULL,
    text TEXT NOT NULL
);
