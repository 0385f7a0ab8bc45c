-- The 43 questions of ClickBench (https://github.com/ClickHouse/ClickBench), in its order: the same
-- columns, filters, groups, orders and limits, in SQL of our own, in which what a query orders by has
-- a name, so that answers can be compared where ties leave rows to choice.
SELECT count(*) FROM hits;
SELECT count(*) FROM hits WHERE AdvEngineID != 0;
SELECT sum(AdvEngineID), count(*), avg(ResolutionWidth) FROM hits;
SELECT avg(UserID) FROM hits;
SELECT count(DISTINCT UserID) FROM hits;
SELECT count(DISTINCT SearchPhrase) FROM hits;
SELECT min(EventDate), max(EventDate) FROM hits;
SELECT AdvEngineID, count(*) AS hits FROM hits WHERE AdvEngineID != 0
GROUP BY AdvEngineID ORDER BY hits DESC;
SELECT RegionID, count(DISTINCT UserID) AS users FROM hits
GROUP BY RegionID ORDER BY users DESC LIMIT 10;
SELECT RegionID, sum(AdvEngineID), count(*) AS hits, avg(ResolutionWidth), count(DISTINCT UserID)
FROM hits GROUP BY RegionID ORDER BY hits DESC LIMIT 10;
SELECT MobilePhoneModel, count(DISTINCT UserID) AS users FROM hits WHERE MobilePhoneModel != ''
GROUP BY MobilePhoneModel ORDER BY users DESC LIMIT 10;
SELECT MobilePhone, MobilePhoneModel, count(DISTINCT UserID) AS users FROM hits
WHERE MobilePhoneModel != '' GROUP BY MobilePhone, MobilePhoneModel ORDER BY users DESC LIMIT 10;
SELECT SearchPhrase, count(*) AS hits FROM hits WHERE SearchPhrase != ''
GROUP BY SearchPhrase ORDER BY hits DESC LIMIT 10;
SELECT SearchPhrase, count(DISTINCT UserID) AS users FROM hits WHERE SearchPhrase != ''
GROUP BY SearchPhrase ORDER BY users DESC LIMIT 10;
SELECT SearchEngineID, SearchPhrase, count(*) AS hits FROM hits WHERE SearchPhrase != ''
GROUP BY SearchEngineID, SearchPhrase ORDER BY hits DESC LIMIT 10;
SELECT UserID, count(*) AS hits FROM hits GROUP BY UserID ORDER BY hits DESC LIMIT 10;
SELECT UserID, SearchPhrase, count(*) AS hits FROM hits
GROUP BY UserID, SearchPhrase ORDER BY hits DESC LIMIT 10;
SELECT UserID, SearchPhrase, count(*) AS hits FROM hits GROUP BY UserID, SearchPhrase LIMIT 10;
SELECT UserID, minute(EventTime) AS at_minute, SearchPhrase, count(*) AS hits FROM hits
GROUP BY UserID, at_minute, SearchPhrase ORDER BY hits DESC LIMIT 10;
SELECT UserID FROM hits WHERE UserID = 435090932899640449;
SELECT count(*) FROM hits WHERE URL LIKE '%google%';
SELECT SearchPhrase, min(URL), count(*) AS hits FROM hits
WHERE URL LIKE '%google%' AND SearchPhrase != '' GROUP BY SearchPhrase ORDER BY hits DESC LIMIT 10;
SELECT SearchPhrase, min(URL), min(Title), count(*) AS hits, count(DISTINCT UserID) FROM hits
WHERE Title LIKE '%Google%' AND URL NOT LIKE '%.google.%' AND SearchPhrase != ''
GROUP BY SearchPhrase ORDER BY hits DESC LIMIT 10;
FROM hits WHERE URL LIKE '%google%' ORDER BY EventTime LIMIT 10;
SELECT SearchPhrase FROM hits WHERE SearchPhrase != '' ORDER BY EventTime LIMIT 10;
SELECT SearchPhrase FROM hits WHERE SearchPhrase != '' ORDER BY SearchPhrase LIMIT 10;
SELECT SearchPhrase FROM hits WHERE SearchPhrase != '' ORDER BY EventTime, SearchPhrase LIMIT 10;
SELECT CounterID, avg(strlen(URL)) AS url_length, count(*) AS hits FROM hits WHERE URL != ''
GROUP BY CounterID HAVING hits > 100000 ORDER BY url_length DESC LIMIT 25;
SELECT regexp_replace(Referer, '^https?://(?:www\.)?([^/]+)/.*$', '\1') AS host,
    avg(strlen(Referer)) AS referer_length, count(*) AS hits, min(Referer)
FROM hits WHERE Referer != '' GROUP BY host HAVING hits > 100000
ORDER BY referer_length DESC LIMIT 25;
SELECT sum(ResolutionWidth), sum(ResolutionWidth + 1), sum(ResolutionWidth + 2),
    sum(ResolutionWidth + 3), sum(ResolutionWidth + 4), sum(ResolutionWidth + 5),
    sum(ResolutionWidth + 6), sum(ResolutionWidth + 7), sum(ResolutionWidth + 8),
    sum(ResolutionWidth + 9), sum(ResolutionWidth + 10), sum(ResolutionWidth + 11),
    sum(ResolutionWidth + 12), sum(ResolutionWidth + 13), sum(ResolutionWidth + 14),
    sum(ResolutionWidth + 15), sum(ResolutionWidth + 16), sum(ResolutionWidth + 17),
    sum(ResolutionWidth + 18), sum(ResolutionWidth + 19), sum(ResolutionWidth + 20),
    sum(ResolutionWidth + 21), sum(ResolutionWidth + 22), sum(ResolutionWidth + 23),
    sum(ResolutionWidth + 24), sum(ResolutionWidth + 25), sum(ResolutionWidth + 26),
    sum(ResolutionWidth + 27), sum(ResolutionWidth + 28), sum(ResolutionWidth + 29),
    sum(ResolutionWidth + 30), sum(ResolutionWidth + 31), sum(ResolutionWidth + 32),
    sum(ResolutionWidth + 33), sum(ResolutionWidth + 34), sum(ResolutionWidth + 35),
    sum(ResolutionWidth + 36), sum(ResolutionWidth + 37), sum(ResolutionWidth + 38),
    sum(ResolutionWidth + 39), sum(ResolutionWidth + 40), sum(ResolutionWidth + 41),
    sum(ResolutionWidth + 42), sum(ResolutionWidth + 43), sum(ResolutionWidth + 44),
    sum(ResolutionWidth + 45), sum(ResolutionWidth + 46), sum(ResolutionWidth + 47),
    sum(ResolutionWidth + 48), sum(ResolutionWidth + 49), sum(ResolutionWidth + 50),
    sum(ResolutionWidth + 51), sum(ResolutionWidth + 52), sum(ResolutionWidth + 53),
    sum(ResolutionWidth + 54), sum(ResolutionWidth + 55), sum(ResolutionWidth + 56),
    sum(ResolutionWidth + 57), sum(ResolutionWidth + 58), sum(ResolutionWidth + 59),
    sum(ResolutionWidth + 60), sum(ResolutionWidth + 61), sum(ResolutionWidth + 62),
    sum(ResolutionWidth + 63), sum(ResolutionWidth + 64), sum(ResolutionWidth + 65),
    sum(ResolutionWidth + 66), sum(ResolutionWidth + 67), sum(ResolutionWidth + 68),
    sum(ResolutionWidth + 69), sum(ResolutionWidth + 70), sum(ResolutionWidth + 71),
    sum(ResolutionWidth + 72), sum(ResolutionWidth + 73), sum(ResolutionWidth + 74),
    sum(ResolutionWidth + 75), sum(ResolutionWidth + 76), sum(ResolutionWidth + 77),
    sum(ResolutionWidth + 78), sum(ResolutionWidth + 79), sum(ResolutionWidth + 80),
    sum(ResolutionWidth + 81), sum(ResolutionWidth + 82), sum(ResolutionWidth + 83),
    sum(ResolutionWidth + 84), sum(ResolutionWidth + 85), sum(ResolutionWidth + 86),
    sum(ResolutionWidth + 87), sum(ResolutionWidth + 88), sum(ResolutionWidth + 89) FROM hits;
SELECT SearchEngineID, ClientIP, count(*) AS hits, sum(IsRefresh) AS refreshed, avg(ResolutionWidth) AS width
FROM hits WHERE SearchPhrase != '' GROUP BY SearchEngineID, ClientIP ORDER BY hits DESC LIMIT 10;
SELECT WatchID, ClientIP, count(*) AS hits, sum(IsRefresh) AS refreshed, avg(ResolutionWidth) AS width
FROM hits WHERE SearchPhrase != '' GROUP BY WatchID, ClientIP ORDER BY hits DESC LIMIT 10;
SELECT WatchID, ClientIP, count(*) AS hits, sum(IsRefresh) AS refreshed, avg(ResolutionWidth) AS width
FROM hits GROUP BY WatchID, ClientIP ORDER BY hits DESC LIMIT 10;
SELECT URL, count(*) AS hits FROM hits GROUP BY URL ORDER BY hits DESC LIMIT 10;
SELECT 1 AS one, URL, count(*) AS hits FROM hits GROUP BY one, URL ORDER BY hits DESC LIMIT 10;
SELECT ClientIP, ClientIP - 1, ClientIP - 2, ClientIP - 3, count(*) AS hits FROM hits
GROUP BY ClientIP, ClientIP - 1, ClientIP - 2, ClientIP - 3 ORDER BY hits DESC LIMIT 10;
SELECT URL, count(*) AS views FROM hits
WHERE CounterID = 62 AND EventDate BETWEEN DATE '2013-07-01' AND DATE '2013-07-31'
    AND DontCountHits = 0 AND IsRefresh = 0 AND URL != ''
GROUP BY URL ORDER BY views DESC LIMIT 10;
SELECT Title, count(*) AS views FROM hits
WHERE CounterID = 62 AND EventDate BETWEEN DATE '2013-07-01' AND DATE '2013-07-31'
    AND DontCountHits = 0 AND IsRefresh = 0 AND Title != ''
GROUP BY Title ORDER BY views DESC LIMIT 10;
SELECT URL, count(*) AS views FROM hits
WHERE CounterID = 62 AND EventDate BETWEEN DATE '2013-07-01' AND DATE '2013-07-31'
    AND IsRefresh = 0 AND IsLink != 0 AND IsDownload = 0
GROUP BY URL ORDER BY views DESC LIMIT 10 OFFSET 1000;
SELECT TraficSourceID, SearchEngineID, AdvEngineID,
    CASE WHEN SearchEngineID = 0 AND AdvEngineID = 0 THEN Referer ELSE '' END AS origin,
    URL AS target, count(*) AS views
FROM hits WHERE CounterID = 62 AND EventDate BETWEEN DATE '2013-07-01' AND DATE '2013-07-31'
    AND IsRefresh = 0
GROUP BY TraficSourceID, SearchEngineID, AdvEngineID, origin, target
ORDER BY views DESC LIMIT 10 OFFSET 1000;
SELECT URLHash, EventDate, count(*) AS views FROM hits
WHERE CounterID = 62 AND EventDate BETWEEN DATE '2013-07-01' AND DATE '2013-07-31'
    AND IsRefresh = 0 AND TraficSourceID IN (-1, 6) AND RefererHash = 3594120000172545465
GROUP BY URLHash, EventDate ORDER BY views DESC LIMIT 10 OFFSET 100;
SELECT WindowClientWidth, WindowClientHeight, count(*) AS views FROM hits
WHERE CounterID = 62 AND EventDate BETWEEN DATE '2013-07-01' AND DATE '2013-07-31'
    AND IsRefresh = 0 AND DontCountHits = 0 AND URLHash = 2868770270353813622
GROUP BY WindowClientWidth, WindowClientHeight ORDER BY views DESC LIMIT 10 OFFSET 10000;
SELECT date_trunc('minute', EventTime) AS at_minute, count(*) AS views FROM hits
WHERE CounterID = 62 AND EventDate BETWEEN DATE '2013-07-14' AND DATE '2013-07-15'
    AND IsRefresh = 0 AND DontCountHits = 0
GROUP BY at_minute ORDER BY at_minute LIMIT 10 OFFSET 1000;
