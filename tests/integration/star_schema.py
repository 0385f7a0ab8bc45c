"""A small star schema, skewed and with nulls, and the questions that reports ask of such."""

# ruff: noqa: E501 - statements read best on one line

from __future__ import annotations

TABLES = {
    "days": """
        SELECT i::INTEGER AS day_id, DATE '2022-01-01' + i::INTEGER AS day, year(day)::INTEGER AS y,
            month(day)::INTEGER AS m, ((month(day) - 1) // 3 + 1)::INTEGER AS quarter,
            dayname(day) AS weekday, (i // 7)::INTEGER AS week
        FROM range(730) r(i)""",
    "items": """
        SELECT i::INTEGER AS item_id, 'item ' || (i % 97) AS title,
            ['Books', 'Music', 'Home', 'Shoes', NULL][1 + i % 5] AS category,
            'brand ' || (i * 7 % 13) AS brand, (i * 37 % 500 / 4)::DECIMAL(7, 2) AS price
        FROM range(200) r(i)""",
    "customers": """
        SELECT i::INTEGER AS customer_id, CASE WHEN i % 11 <> 3 THEN 'name ' || (i % 50) END AS name,
            ['TN', 'CA', 'NY', 'WA'][1 + i * i % 4] AS state, (1930 + i * 13 % 70)::INTEGER AS born
        FROM range(300) r(i)""",
    "stores": """
        SELECT i::INTEGER AS store_id, 'store ' || i AS store, ['TN', 'CA'][1 + i % 2] AS state
        FROM range(6) r(i)""",
    "sales": """
        SELECT (i // 4)::INTEGER AS ticket, (i * 7919 % 200 * (i * 31 % 5) // 4)::INTEGER AS item_id,
            CASE WHEN i // 4 % 23 <> 0 THEN (i // 4 * 17 % 300)::INTEGER END AS customer_id,
            CASE WHEN i % 41 <> 7 THEN (i // 4 % 6)::INTEGER END AS store_id,
            CASE WHEN i % 53 <> 5 THEN (i // 4 * 29 % 700)::INTEGER END AS day_id,
            (1 + i % 9)::INTEGER AS quantity,
            CASE WHEN i % 29 <> 1 THEN (i * 41 % 9000 / 100)::DECIMAL(7, 2) END AS paid,
            ((i * 61 % 6000 - 2500) / 100)::DECIMAL(7, 2) AS profit
        FROM range(6000) r(i)""",
    "web_sales": """
        SELECT i::INTEGER AS web_order, (i * 7907 % 200)::INTEGER AS item_id,
            CASE WHEN i % 19 <> 4 THEN (i * 13 % 260)::INTEGER END AS customer_id,
            (i * 23 % 730)::INTEGER AS day_id, (1 + i % 7)::INTEGER AS quantity,
            (i * 43 % 8000 / 100)::DECIMAL(7, 2) AS paid
        FROM range(2500) r(i)""",
    "returns": """
        SELECT ticket, item_id, customer_id, store_id, least(day_id + ticket % 40, 729)::INTEGER AS day_id,
            (paid / 2)::DECIMAL(7, 2) AS refunded
        FROM (FROM sales) WHERE (ticket * 7 + item_id) % 9 = 0""",
}
"""The SELECT that makes each table, in order."""

PARTITIONED = {"sales": "item_id", "returns": "item_id", "customers": "customer_id"}
"""The tables that lie by a key."""

QUESTIONS = {
    "customers who return more than others of their store": """
        WITH refunds AS (SELECT customer_id, store_id, sum(refunded) AS total FROM returns JOIN days USING (day_id)
            WHERE y = 2022 GROUP BY ALL)
        SELECT name, a.total FROM refunds a JOIN stores USING (store_id) JOIN customers USING (customer_id)
        WHERE a.total > (SELECT avg(total) * 1.2 FROM refunds b WHERE b.store_id = a.store_id) AND stores.state = 'TN'
        ORDER BY customer_id, store_id""",
    "one year beside the next, week by week": """
        WITH channels AS (SELECT day_id, paid FROM sales UNION ALL SELECT day_id, paid FROM web_sales),
        weekly AS (SELECT y, week % 52 AS w, sum(CASE WHEN weekday = 'Sunday' THEN paid END) AS sunday,
            sum(CASE WHEN weekday = 'Monday' THEN paid END) AS monday FROM channels JOIN days USING (day_id) GROUP BY ALL)
        SELECT a.w, round(a.sunday / nullif(b.sunday, 0), 2), round(a.monday / nullif(b.monday, 0), 2)
        FROM weekly a JOIN weekly b ON a.w = b.w AND a.y = b.y - 1 ORDER BY a.w""",
    "sums over a rollup, ranked inside their level": """
        SELECT category, brand, grouping(category) + grouping(brand) AS level, sum(profit) AS s,
            rank() OVER (PARTITION BY grouping(category) + grouping(brand),
                CASE WHEN grouping(brand) = 0 THEN category END ORDER BY sum(profit) DESC) AS place
        FROM sales JOIN items USING (item_id) JOIN days USING (day_id) WHERE y = 2022
        GROUP BY ROLLUP (category, brand) ORDER BY level DESC, category, place, brand""",
    "customers of both channels": """
        SELECT customer_id, day_id % 100 FROM sales INTERSECT SELECT customer_id, day_id % 100 FROM web_sales""",
    "customers of one channel only": """
        SELECT count(*) FROM ((SELECT DISTINCT name, state FROM sales JOIN customers USING (customer_id))
            EXCEPT (SELECT DISTINCT name, state FROM web_sales JOIN customers USING (customer_id)))""",
    "channels side by side": """
        SELECT coalesce(a.day_id, b.day_id) AS day, a.s, b.s, sum(a.s) OVER w, sum(b.s) OVER w FROM
        (SELECT day_id, sum(paid) AS s FROM sales WHERE item_id < 50 GROUP BY 1) a FULL JOIN
        (SELECT day_id, sum(paid) AS s FROM web_sales WHERE item_id > 150 GROUP BY 1) b ON a.day_id = b.day_id
        WINDOW w AS (ORDER BY coalesce(a.day_id, b.day_id) NULLS FIRST) ORDER BY day NULLS FIRST""",
    "items far from the mean of their category": """
        SELECT title, category, sum(paid) AS s, sum(paid) * 100 / sum(sum(paid)) OVER (PARTITION BY category) AS share
        FROM sales JOIN items USING (item_id) GROUP BY item_id, title, category
        QUALIFY abs(s - avg(sum(paid)) OVER (PARTITION BY category)) > 100 ORDER BY item_id""",
    "months beside their neighbours": """
        WITH monthly AS (SELECT category, y, m, sum(paid) AS s, avg(sum(paid)) OVER (PARTITION BY category, y) AS mean,
            rank() OVER (PARTITION BY category ORDER BY y, m) AS n
            FROM sales JOIN items USING (item_id) JOIN days USING (day_id) GROUP BY category, y, m)
        SELECT v.category, v.y, v.m, v.s, v.mean, lag.s, lead.s FROM monthly v JOIN monthly lag ON v.category = lag.category
            AND v.n = lag.n + 1 JOIN monthly lead ON v.category = lead.category AND v.n = lead.n - 1
        WHERE v.mean > 0 AND abs(v.s - v.mean) / v.mean > 0.1 ORDER BY ALL""",
    "who bought often but never returned": """
        SELECT state, count(*) FROM customers c WHERE (SELECT count(*) FROM sales s WHERE s.customer_id = c.customer_id) > 12
            AND NOT EXISTS (SELECT 1 FROM returns r WHERE r.customer_id = c.customer_id AND r.refunded > 40)
            AND c.customer_id IN (SELECT customer_id FROM web_sales) GROUP BY state""",
    "counts of hours in one row": """
        SELECT * FROM (SELECT count(*) AS a FROM sales WHERE quantity BETWEEN 1 AND 3),
            (SELECT count(DISTINCT customer_id) AS b FROM sales WHERE quantity BETWEEN 4 AND 6),
            (SELECT avg(paid) AS c FROM sales WHERE quantity > 6 OR store_id IS NULL)""",
    "buckets by size": """
        SELECT CASE WHEN (SELECT count(*) FROM sales WHERE quantity < 4) > 1000 THEN (SELECT avg(paid) FROM sales WHERE quantity < 4)
            ELSE (SELECT avg(profit) FROM sales WHERE quantity < 4) END AS bucket FROM stores WHERE store_id = 1""",
    "any of several exact combinations": """
        SELECT avg(quantity), avg(paid), sum(profit) FROM sales JOIN stores USING (store_id) JOIN customers USING (customer_id)
        WHERE (customers.state = 'TN' AND born < 1960 AND paid BETWEEN 10 AND 50)
            OR (customers.state = 'CA' AND paid BETWEEN 50 AND 90) OR (stores.state = 'CA' AND profit BETWEEN 0 AND 20)""",
    "sold, then returned, then bought on the web": """
        SELECT i.title, s.store, count(*), stddev_samp(a.quantity), avg(r.refunded), sum(w.paid)
        FROM sales a JOIN returns r ON a.customer_id = r.customer_id AND a.item_id = r.item_id AND a.ticket = r.ticket
        JOIN web_sales w ON r.customer_id = w.customer_id AND r.day_id <= w.day_id
        JOIN items i ON i.item_id = a.item_id JOIN stores s ON s.store_id = a.store_id
        GROUP BY i.title, s.store ORDER BY i.title, s.store LIMIT 50""",
    "the best and the worst, side by side": """
        WITH means AS (SELECT item_id, avg(profit) AS mean FROM sales WHERE store_id = 4 GROUP BY item_id
            HAVING avg(profit) > 0.9 * (SELECT avg(profit) FROM sales WHERE store_id = 4 AND customer_id IS NULL)),
        up AS (SELECT item_id, rank() OVER (ORDER BY mean, item_id) AS n FROM means),
        down AS (SELECT item_id, rank() OVER (ORDER BY mean DESC, item_id) AS n FROM means)
        SELECT n, a.title AS best, b.title AS worst FROM up JOIN down USING (n) JOIN items a ON a.item_id = down.item_id
            JOIN items b ON b.item_id = up.item_id WHERE n < 11 ORDER BY n""",
    "growth of the same customers in two channels": """
        WITH totals AS (SELECT customer_id, y, sum(paid) AS s, 'store' AS channel FROM sales JOIN days USING (day_id) GROUP BY ALL
            UNION ALL SELECT customer_id, y, sum(paid), 'web' FROM web_sales JOIN days USING (day_id) GROUP BY ALL)
        SELECT a.customer_id, b.s / a.s, d.s / c.s FROM totals a, totals b, totals c, totals d
        WHERE a.customer_id = b.customer_id AND a.customer_id = c.customer_id AND a.customer_id = d.customer_id
            AND a.channel = 'store' AND b.channel = 'store' AND c.channel = 'web' AND d.channel = 'web'
            AND a.y = 2022 AND b.y = 2023 AND c.y = 2022 AND d.y = 2023 AND a.s > 0 AND c.s > 0
            AND CASE WHEN c.s > 0 THEN d.s / c.s END > CASE WHEN a.s > 0 THEN b.s / a.s END ORDER BY a.customer_id""",
    "running sums that one channel leads": """
        WITH a AS (SELECT item_id, day_id, sum(sum(paid)) OVER (PARTITION BY item_id ORDER BY day_id) AS total FROM sales
            WHERE day_id < 120 GROUP BY item_id, day_id),
        b AS (SELECT item_id, day_id, sum(sum(paid)) OVER (PARTITION BY item_id ORDER BY day_id) AS total FROM web_sales
            WHERE day_id < 120 GROUP BY item_id, day_id)
        SELECT item_id, day_id, max(a.total) OVER w AS x, max(b.total) OVER w AS y FROM a FULL JOIN b USING (item_id, day_id)
        WINDOW w AS (PARTITION BY item_id ORDER BY day_id) QUALIFY y > x ORDER BY 1, 2""",
    "late and early in one cube": """
        SELECT category, store, quarter, count(*), sum(paid), max(profit) FROM sales LEFT JOIN items USING (item_id)
            LEFT JOIN stores USING (store_id) LEFT JOIN days USING (day_id)
        GROUP BY CUBE (category, store, quarter) HAVING count(*) > 40""",
    "returns in a year of each name": """
        SELECT name, count(DISTINCT ticket), sum(refunded), max(sum(refunded)) OVER (PARTITION BY state) FROM returns
            JOIN customers USING (customer_id) JOIN days USING (day_id) WHERE day BETWEEN DATE '2022-02-01' AND DATE '2023-01-31'
        GROUP BY name, state ORDER BY ALL""",
    "a month that is looked up": """
        SELECT i.category, count(*) FROM days d, sales s, items i WHERE d.day_id = s.day_id AND s.item_id = i.item_id
            AND d.week = (SELECT DISTINCT week FROM days WHERE day = DATE '2022-03-09')
            AND i.price > 1.2 * (SELECT avg(j.price) FROM items j WHERE j.category = i.category)
        GROUP BY i.category""",
    "brands in the same order as last year": """
        SELECT brand, y, s, lag(s) OVER (PARTITION BY brand ORDER BY y) AS before, s - lag(s) OVER (PARTITION BY brand ORDER BY y)
        FROM (SELECT brand, y, sum(paid) AS s FROM (SELECT item_id, day_id, paid FROM sales UNION SELECT item_id, day_id, paid
            FROM web_sales) JOIN items USING (item_id) JOIN days USING (day_id) GROUP BY brand, y) ORDER BY brand, y""",
}
"""Statements with one right answer over the tables."""
