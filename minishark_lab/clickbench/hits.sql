-- Rows of ClickBench's table `hits`: its 105 columns with the types of its Parquet files, in which
-- times are seconds and dates are days since 1970. Row i is a function of i and the variables `seed`
-- and `rows`. As in the original, rows are sorted by site, the hits of a visit stand together, few
-- sites and pages have most of the hits, and most columns are empty or constant in most rows.
CREATE OR REPLACE TEMP MACRO part(n, salt) AS
    (hash(n, salt, getvariable('seed')) >> 11)::DOUBLE / 9007199254740992;
CREATE OR REPLACE TEMP MACRO pick(n, salt, below) AS floor(part(n, salt) * below)::BIGINT;
-- Of `below` numbers, low ones most often: the higher the power, the more so.
CREATE OR REPLACE TEMP MACRO skewed(n, salt, below, power) AS
    floor(pow(part(n, salt), power) * below)::BIGINT;
CREATE OR REPLACE TEMP MACRO word(n, salt) AS
    ['news', 'photo', 'forum', 'music', 'cars', 'weather', 'football', 'games', 'recipe', 'garden',
     'phone', 'travel', 'school', 'market', 'house', 'cinema', 'kitchen', 'dress', 'ticket',
     'bicycle', 'camera', 'river', 'doctor', 'winter', 'summer', 'radio', 'letter', 'mirror',
     'window', 'orange', 'planet', 'silver'][pick(n, salt, 32) + 1];
COPY (
WITH numbered AS (
    SELECT
        i, i // 6 AS visit, i / getvariable('rows') AS place,
        -- Two sites have over a quarter of all hits; these are in the order of their dates.
        CASE WHEN place < 0.15 THEN 62 WHEN place < 0.27 THEN 1483
            ELSE 1500 + floor(pow((place - 0.27) / 0.73, 4) * 6500)::INTEGER * 13 END AS counter,
        CASE WHEN place < 0.15 THEN place / 0.15 WHEN place < 0.27 THEN (place - 0.15) / 0.12
            ELSE part(visit, 'day') END AS month_part,
        1 + skewed(visit, 'user', getvariable('rows') / 5, 1.5) AS person,
        skewed(i, 'page', 20000, 5) AS page
    FROM range(getvariable('rows')) r(i)
), visited AS (
    SELECT
        *, 15887 + floor(month_part * 31)::INTEGER AS event_day,
        event_day * 86400 + (pick(visit, 'second', 86000) + i % 6 * 60) AS event_time,
        CASE WHEN person = 3 THEN 435090932899640449
            ELSE (hash(person, 'person', getvariable('seed')) >> 1)::BIGINT END AS user_id,
        part(person, 'mobile') < 0.08 AS mobile,
        pick(person, 'screen', 8) AS screen,
        part(visit, 'searched') < 0.13 AS searched,
        -- Where a visit comes from: -1 the site itself, 1 links, 2 a search, 3 advertising, 6 saved pages.
        CASE WHEN searched THEN 2 ELSE [-1, -1, -1, 0, 0, 1, 1, 3, 6, 6][pick(visit, 'source', 10) + 1]
            END AS source,
        skewed(visit, 'phrase', getvariable('rows') / 8, 2) AS phrase,
        CASE WHEN part(i, 'elsewhere') < 0.006
                THEN 'http://www.google.example/maps?id=' || page || '&counter=' || counter
            WHEN page = 0 THEN 'http://site' || counter || '.example/'
            ELSE 'http://site' || counter || '.example/' || word(page, 'section') || '/'
                || word(page, 'topic') || '/' || page || '.html'
                || CASE WHEN page % 4 = 0 THEN '?from=' || word(visit, 'from') ELSE '' END
            END AS url,
        CASE WHEN source IN (-1, 6) AND part(i, 'direct') < 0.5 THEN 'http://site62.example/start/page'
            WHEN searched THEN 'http://' || ['yandex', 'google', 'mail'][pick(visit, 'engine', 3) + 1]
                || '.example/search?text=' || phrase
            WHEN part(i, 'referred') < 0.45 THEN ''
            WHEN part(i, 'inside') < 0.6
                THEN 'https://www.portal.example/' || word(i, 'column') || '/' || page % 500
            ELSE 'http://site' || counter || '.example/' || word(page, 'section') || '/' END AS referer
    FROM numbered
)
SELECT
    (hash(i, 'watch', getvariable('seed')) >> 1)::BIGINT AS WatchID,
    (part(person, 'java') < 0.8)::SMALLINT AS JavaEnable,
    CASE WHEN part(page, 'untitled') < 0.12 THEN ''
        WHEN part(page, 'maps') < 0.02 THEN 'Google ' || word(page, 'topic') || ' ' || page
        ELSE word(page, 'topic') || ': ' || word(page, 'section') || ' at site ' || counter END AS Title,
    1::SMALLINT AS GoodEvent,
    event_time::BIGINT AS EventTime,
    event_day::USMALLINT AS EventDate,
    counter::INTEGER AS CounterID,
    (pick(person, 'address', 4294967296) - 2147483648)::INTEGER AS ClientIP,
    (1 + skewed(person, 'region', 9000, 5))::INTEGER AS RegionID,
    user_id AS UserID,
    (part(counter, 'class') < 0.2)::SMALLINT AS CounterClass,
    skewed(person, 'os', 90, 4)::SMALLINT AS OS,
    skewed(person, 'agent', 80, 3)::SMALLINT AS UserAgent,
    url AS URL,
    referer AS Referer,
    (part(i, 'refresh') < 0.11)::SMALLINT AS IsRefresh,
    skewed(referer, 'category', 20000, 6)::SMALLINT AS RefererCategoryID,
    skewed(referer, 'region', 500, 4)::INTEGER AS RefererRegionID,
    skewed(counter, 'category', 20000, 6)::SMALLINT AS URLCategoryID,
    skewed(counter, 'region', 500, 4)::INTEGER AS URLRegionID,
    CASE WHEN mobile THEN 320 ELSE [1366, 1280, 1920, 1024, 1440, 1600, 1680, 0][screen + 1]
        END::SMALLINT AS ResolutionWidth,
    CASE WHEN mobile THEN 480 ELSE [768, 1024, 1080, 768, 900, 900, 1050, 0][screen + 1]
        END::SMALLINT AS ResolutionHeight,
    (CASE WHEN screen = 7 THEN 0 WHEN screen = 3 THEN 24 ELSE 37 END)::SMALLINT AS ResolutionDepth,
    (CASE WHEN mobile THEN 0 ELSE 11 + pick(person, 'flash', 4) END)::SMALLINT AS FlashMajor,
    pick(person, 'flash minor', 9)::SMALLINT AS FlashMinor,
    (pick(person, 'flash patch', 800))::VARCHAR AS FlashMinor2,
    0::SMALLINT AS NetMajor,
    0::SMALLINT AS NetMinor,
    (10 + skewed(person, 'agent major', 30, 2))::SMALLINT AS UserAgentMajor,
    ['D', 'n', 'c', '0', '1'][pick(person, 'agent minor', 5) + 1] AS UserAgentMinor,
    1::SMALLINT AS CookieEnable,
    (part(person, 'javascript') < 0.99)::SMALLINT AS JavascriptEnable,
    mobile::SMALLINT AS IsMobile,
    (CASE WHEN mobile THEN 1 + skewed(person, 'phone', 60, 2) ELSE 0 END)::SMALLINT AS MobilePhone,
    CASE WHEN mobile AND part(person, 'known phone') < 0.7
        THEN word(person, 'brand') || ' ' || skewed(person, 'model', 40, 2) ELSE '' END AS MobilePhoneModel,
    CASE WHEN part(i, 'parameters') < 0.02 THEN '{"page":' || page || '}' ELSE '' END AS Params,
    skewed(person, 'network', 4000000, 2)::INTEGER AS IPNetworkID,
    source::SMALLINT AS TraficSourceID,
    (CASE WHEN searched THEN 2 + skewed(visit, 'search engine', 80, 4) ELSE 0 END)::SMALLINT
        AS SearchEngineID,
    CASE WHEN searched THEN word(phrase, 'first') || ' ' || word(phrase, 'second') || ' ' || phrase
        ELSE '' END AS SearchPhrase,
    (CASE WHEN source = 3 AND part(visit, 'advert') < 0.08 THEN 1 + skewed(visit, 'advertiser', 60, 3)
        ELSE 0 END)::SMALLINT AS AdvEngineID,
    0::SMALLINT AS IsArtifical,
    (CASE WHEN mobile THEN 320 ELSE 600 + pick(visit, 'width', 1300) END)::SMALLINT AS WindowClientWidth,
    (CASE WHEN mobile THEN 440 ELSE 300 + pick(visit, 'height', 700) END)::SMALLINT
        AS WindowClientHeight,
    ([135, 135, 135, 180, 240, -1][pick(person, 'zone', 6) + 1])::SMALLINT AS ClientTimeZone,
    (event_time + 7200 + pick(visit, 'clock', 60))::BIGINT AS ClientEventTime,
    (CASE WHEN part(person, 'silverlight') < 0.4 THEN 5 ELSE 0 END)::SMALLINT AS SilverlightVersion1,
    (CASE WHEN SilverlightVersion1 > 0 THEN 1 ELSE 0 END)::SMALLINT AS SilverlightVersion2,
    (CASE WHEN SilverlightVersion1 > 0 THEN 20125 ELSE 0 END)::INTEGER AS SilverlightVersion3,
    0::SMALLINT AS SilverlightVersion4,
    (CASE WHEN counter % 3 = 0 THEN 'windows' ELSE 'utf-8' END) AS PageCharset,
    (300 + counter % 40)::INTEGER AS CodeVersion,
    (part(i, 'link') < 0.06)::SMALLINT AS IsLink,
    (part(i, 'download') < 0.003)::SMALLINT AS IsDownload,
    (part(i, 'bounce') < 0.08)::SMALLINT AS IsNotBounce,
    (CASE WHEN part(person, 'cookie') < 0.3 THEN user_id ELSE 0 END)::BIGINT AS FUniqID,
    CASE WHEN part(i, 'original') < 0.03 THEN url ELSE '' END AS OriginalURL,
    pick(i, 'hid', 1073741824)::INTEGER AS HID,
    0::SMALLINT AS IsOldCounter,
    (part(i, 'event') < 0.04)::SMALLINT AS IsEvent,
    (part(i, 'parameters') < 0.02)::SMALLINT AS IsParameter,
    (part(i, 'uncounted') < 0.07)::SMALLINT AS DontCountHits,
    (part(i, 'hash') < 0.01)::SMALLINT AS WithHash,
    ['5', 'E', 'T', 'D', 'g'][pick(visit, 'color', 5) + 1] AS HitColor,
    (event_time + 14400)::BIGINT AS LocalEventTime,
    ([0, 0, 16, 22, 31, 39, 50][pick(person, 'age', 7) + 1])::SMALLINT AS Age,
    pick(person, 'sex', 3)::SMALLINT AS Sex,
    pick(person, 'income', 4)::SMALLINT AS Income,
    skewed(person, 'interests', 30000, 5)::SMALLINT AS Interests,
    skewed(person, 'robot', 60, 20)::SMALLINT AS Robotness,
    (pick(visit, 'remote', 4294967296) - 2147483648)::INTEGER AS RemoteIP,
    -1::INTEGER AS WindowName,
    -1::INTEGER AS OpenerName,
    (i % 6)::SMALLINT AS HistoryLength,
    (CASE WHEN part(person, 'language') < 0.9 THEN 'S0' ELSE 'eh' END) AS BrowserLanguage,
    (CASE WHEN part(person, 'country') < 0.8 THEN 'h1' ELSE 'y3' END) AS BrowserCountry,
    '' AS SocialNetwork,
    '' AS SocialAction,
    (CASE WHEN part(i, 'error') < 0.001 THEN 404 ELSE 0 END)::SMALLINT AS HTTPError,
    skewed(i, 'send', 30000, 12)::INTEGER AS SendTiming,
    skewed(i, 'dns', 10000, 12)::INTEGER AS DNSTiming,
    skewed(i, 'connect', 20000, 10)::INTEGER AS ConnectTiming,
    skewed(i, 'response', 20000, 6)::INTEGER AS ResponseStartTiming,
    skewed(i, 'end', 20000, 6)::INTEGER AS ResponseEndTiming,
    skewed(i, 'fetch', 30000, 6)::INTEGER AS FetchTiming,
    (CASE WHEN part(i, 'social') < 0.005 THEN 1 + i % 4 ELSE 0 END)::SMALLINT AS SocialSourceNetworkID,
    '' AS SocialSourcePage,
    (CASE WHEN part(i, 'bought') < 0.001 THEN pick(i, 'price', 100000) ELSE -1 END)::BIGINT
        AS ParamPrice,
    '' AS ParamOrderID,
    'NH' || chr(28) AS ParamCurrency,
    0::SMALLINT AS ParamCurrencyID,
    CASE WHEN part(visit, 'openstat') < 0.01 THEN word(visit, 'service') ELSE '' END
        AS OpenstatServiceName,
    CASE WHEN OpenstatServiceName <> '' THEN 'c' || pick(visit, 'campaign', 300) ELSE '' END
        AS OpenstatCampaignID,
    CASE WHEN OpenstatServiceName <> '' THEN 'a' || pick(visit, 'ad', 3000) ELSE '' END AS OpenstatAdID,
    CASE WHEN OpenstatServiceName <> '' THEN 's' || pick(visit, 'place', 90) ELSE '' END
        AS OpenstatSourceID,
    CASE WHEN part(visit, 'utm') < 0.02 THEN word(visit, 'utm source') ELSE '' END AS UTMSource,
    CASE WHEN UTMSource <> '' THEN ['cpc', 'banner', 'email'][pick(visit, 'medium', 3) + 1] ELSE '' END
        AS UTMMedium,
    CASE WHEN UTMSource <> '' THEN word(visit, 'utm campaign') ELSE '' END AS UTMCampaign,
    CASE WHEN UTMSource <> '' THEN 'v' || pick(visit, 'content', 900) ELSE '' END AS UTMContent,
    CASE WHEN UTMSource <> '' THEN word(visit, 'utm term') ELSE '' END AS UTMTerm,
    CASE WHEN part(visit, 'tag') < 0.002 THEN word(visit, 'from tag') ELSE '' END AS FromTag,
    (part(visit, 'gclid') < 0.004)::SMALLINT AS HasGCLID,
    CASE referer WHEN 'http://site62.example/start/page' THEN 3594120000172545465
        ELSE (hash(referer) >> 1)::BIGINT END AS RefererHash,
    CASE url WHEN 'http://site62.example/' THEN 2868770270353813622
        ELSE (hash(url) >> 1)::BIGINT END AS URLHash,
    0::INTEGER AS CLID
FROM visited
) TO '{file}' (FORMAT parquet);
