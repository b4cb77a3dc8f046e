-- Statements on one table, each followed by what MySQL 8 answers, or by the code of its error.
-- Numbers are written as SQLite has them: MySQL's DECIMAL is a float here.

SELECT name FROM `t 1` WHERE year > 2000
-- [('bob',), ('Émile',)]
SELECT name FROM `t 1` WHERE score < 10 ORDER BY score
-- [('bob',), ('Zoe',)]
SELECT name FROM `t 1` WHERE score < '10'
-- []
SELECT name FROM `t 1` WHERE name = 'ANN'
-- [('Ann',)]
SELECT name FROM `t 1` WHERE name = 'emile'
-- [('Émile',)]
SELECT name FROM `t 1` WHERE name LIKE '%O%'
-- [('bob',), ('Zoe',)]
SELECT name FROM `t 1` WHERE name LIKE '_n_'
-- [('Ann',)]
SELECT name FROM `t 1` WHERE name NOT LIKE '%e%'
-- [('Ann',), ('bob',)]
SELECT name FROM `t 1` WHERE name LIKE 'A%' ESCAPE '|'
-- [('Ann',)]
SELECT '50%' LIKE '50\%', '505' LIKE '50\%', 'a_b' LIKE 'a\_b', 'axb' LIKE 'a\_b'
-- [(1, 0, 1, 0)]
SELECT name FROM `t 1` WHERE name REGEXP '^[a-b]'
-- [('Ann',), ('bob',)]
SELECT name FROM `t 1` WHERE year IN (1999, 2005)
-- [('Ann',), ('bob',)]
SELECT name FROM `t 1` WHERE year NOT IN (1999, 2005)
-- [('Émile',), ('Zoe',)]
SELECT name FROM `t 1` WHERE year IN ('1999', '2010')
-- [('Ann',), ('Émile',)]
SELECT name FROM `t 1` WHERE score BETWEEN 8 AND 20
-- [('Ann',), ('Zoe',)]
SELECT name FROM `t 1` WHERE score NOT BETWEEN 8 AND 20
-- [('bob',), ('Émile',)]
SELECT SUM(score), AVG(score), MAX(score), MIN(score), COUNT(*) FROM `t 1`
-- [(128.0, 32.0, '9', '100', 4)]
SELECT MAX(CAST(score AS SIGNED)), MIN(score + 0) FROM `t 1`
-- [(100, 7.0)]
SELECT SUM(`2013_x`) FROM `t 1`
-- [(4.5,)]
SELECT SUM(2013_x) FROM `t 1`
-- [(4.5,)]
SELECT score + 1, score * 2, score - 0.5, -score FROM `t 1` WHERE name = 'bob'
-- [(8.0, 14.0, 6.5, -7.0)]
SELECT score / 2, score DIV 2, score % 2, 7 MOD 4, 1 / 0 FROM `t 1` WHERE name = 'bob'
-- [(3.5, 3, 1.0, 3, None)]
SELECT name, score FROM `t 1` ORDER BY CAST(score AS SIGNED) DESC LIMIT 2
-- [('Émile', '100'), ('Ann', '12')]
SELECT name FROM `t 1` ORDER BY name
-- [('Ann',), ('bob',), ('Émile',), ('Zoe',)]
SELECT name FROM `t 1` ORDER BY score + 0 LIMIT 1, 2
-- [('Zoe',), ('Ann',)]
SELECT COUNT(DISTINCT UPPER(name)) FROM `t 1`
-- [(4,)]
SELECT CONCAT(name, '-', score), CONCAT_WS('/', name, NULL, year), CONCAT('a', NULL) FROM `t 1` WHERE score = 7
-- [('bob-7', 'bob/2005', None)]
SELECT IF(score > 10, 'big', 'small') FROM `t 1`
-- [('big',), ('small',), ('big',), ('small',)]
SELECT IFNULL(NULL, 'x'), NULLIF('a', 'A'), COALESCE(NULL, NULL, 3)
-- [('x', None, 3)]
SELECT CASE name WHEN 'ann' THEN 1 WHEN 'Bob' THEN 2 ELSE 3 END FROM `t 1`
-- [(1,), (2,), (3,), (3,)]
SELECT CASE score WHEN 7 THEN 'seven' END FROM `t 1`
-- [(None,), ('seven',), (None,), (None,)]
SELECT MD5('abc'), SHA1('abc'), SHA2('abc', 256), HEX('abc'), HEX(255)
-- [('900150983cd24fb0d6963f7d28e17f72', 'a9993e364706816aba3e25717850c26c9cd0d89d', 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad', '616263', 'FF')]
SELECT SUBSTRING('Quadratically', 5), SUBSTRING('foobarbar' FROM 4), SUBSTRING('Quadratically', 5, 6), SUBSTRING('Sakila', -3), SUBSTR('abc', 0)
-- [('ratically', 'barbar', 'ratica', 'ila', '')]
SELECT SUBSTRING_INDEX('www.mysql.com', '.', 2), SUBSTRING_INDEX('www.mysql.com', '.', -2)
-- [('www.mysql', 'mysql.com')]
SELECT LEFT('foobarbar', 5), RIGHT('foobarbar', 4), MID('abcdef', 2, 3)
-- [('fooba', 'rbar', 'bcd')]
SELECT LOCATE('bar', 'foobarbar'), LOCATE('xbar', 'foobar'), LOCATE('bar', 'foobarbar', 5), INSTR('foobarbar', 'BAR'), POSITION('b' IN 'abc')
-- [(4, 0, 7, 4, 2)]
SELECT REPLACE('www.mysql.com', 'w', 'Ww'), REVERSE('abc'), REPEAT('ab', 3), LPAD('hi', 4, '?'), LPAD('hi', 1, '?'), RPAD('hi', 5, '?')
-- [('WwWwWw.mysql.com', 'cba', 'ababab', '??hi', 'h', 'hi???')]
SELECT TRIM('  bar   '), TRIM(LEADING 'x' FROM 'xxxbarxxx'), TRIM(BOTH 'x' FROM 'xxxbarxxx'), TRIM(TRAILING 'xyz' FROM 'barxxyz'), LTRIM('  a'), RTRIM('a  ')
-- [('bar', 'barxxx', 'bar', 'barx', 'a', 'a')]
SELECT LENGTH('Émile'), CHAR_LENGTH('Émile'), UPPER('émile'), LOWER('ABC'), ASCII('2'), CHAR_LENGTH(12)
-- [(6, 5, 'ÉMILE', 'abc', 50, 2)]
SELECT INSERT('Quadratic', 3, 4, 'What'), ELT(2, 'a', 'b'), FIELD('Bb', 'Aa', 'Bb', 'Cc'), FIND_IN_SET('b', 'a,b,c,d'), STRCMP('text', 'text2')
-- [('QuWhattic', 'b', 2, 2, -1)]
SELECT GREATEST(2, 0, 34), LEAST('B', 'A', 'C'), GREATEST('10', '9')
-- [(34, 'A', '9')]
SELECT ROUND(-1.23), ROUND(1.298, 1), ROUND(23.298, -1), ROUND('2.5'), TRUNCATE(1.999, 1), TRUNCATE(122, -2)
-- [(-1.0, 1.3, 20.0, 2.0, 1.9, 100)]
SELECT CEIL(1.23), FLOOR(-1.23), ABS('-3'), SIGN(-32), POW(2, 3), SQRT(16), MOD(234, 10), MOD(-7, 3), SQRT(-1)
-- [(2.0, -2.0, 3.0, -1, 8.0, 4.0, 4, -1, None)]
SELECT CAST('12abc' AS SIGNED), CAST('3.7' AS DECIMAL(10,1)), CAST('3.7' AS DECIMAL), CAST(3.7 AS SIGNED), CAST('abc' AS SIGNED), CAST(5 AS CHAR), CAST('1,200' AS SIGNED)
-- [(12, 3.7, 4, 4, 0, '5', 1)]
SELECT CONVERT('12', SIGNED), CONVERT('12.34', DECIMAL(5,1)), FORMAT(12332.1234, 2)
-- [(12, 12.3, '12,332.12')]
SELECT '10' = 10, 'abc' = 0, '1e1' = 10, 'a' = 'A', 'a ' = 'a', NULL = NULL, NULL <=> NULL, 1 <=> NULL, 'é' = 'e'
-- [(1, 1, 1, 1, 0, None, 1, 0, 1)]
SELECT 1 XOR 1, 1 XOR 0, NOT 1, !0, 2 AND 3, 0 OR NULL
-- [(0, 1, 0, 1, 1, None)]
SELECT BINARY 'a' = 'A', 'a' COLLATE utf8mb4_bin = 'A'
-- [(0, 0)]
SELECT DATEDIFF('2007-12-31 23:59:59', '2007-12-30'), TIMESTAMPDIFF(MONTH, '2003-02-01', '2003-05-01'), TIMESTAMPDIFF(YEAR, '2002-05-01', '2001-01-01')
-- [(1, 3, -1)]
SELECT DATE_FORMAT('2009-10-04 22:23:00', '%Y-%m-%d'), DAYNAME('2007-02-03'), MONTHNAME('2008-02-03'), QUARTER('2008-04-01'), DAYOFWEEK('2007-02-03'), WEEKDAY('2008-02-03')
-- [('2009-10-04', 'Saturday', 'February', 2, 7, 6)]
SELECT GROUP_CONCAT(name ORDER BY name DESC SEPARATOR ';'), GROUP_CONCAT(DISTINCT LEFT(year, 2) ORDER BY 1) FROM `t 1` WHERE year <> ''
-- [('Émile;bob;Ann', '19,20')]
SELECT GROUP_CONCAT(name) FROM `t 1` WHERE 1 = 0
-- [(None,)]
SELECT LEFT(year, 3) AS decade, COUNT(*) AS n FROM `t 1` GROUP BY LEFT(year, 3) HAVING n >= 1 ORDER BY decade
-- [('', 1), ('199', 1), ('200', 1), ('201', 1)]
SELECT n FROM (SELECT COUNT(*) AS n FROM `t 1`) AS q WHERE n = '4'
-- [(4,)]
SELECT a.name FROM `t 1` a JOIN `t 1` b ON a.score = b.score WHERE b.name = 'Zoe'
-- [('Zoe',)]
SELECT name FROM `t 1` WHERE score = (SELECT MAX(score) FROM `t 1`)
-- [('Zoe',)]
SELECT name FROM `t 1` WHERE score + 0 = (SELECT MAX(score + 0) FROM `t 1`)
-- [('Émile',)]
SELECT name, RANK() OVER (ORDER BY score + 0 DESC) FROM `t 1` ORDER BY name
-- [('Ann', 2), ('bob', 4), ('Émile', 1), ('Zoe', 3)]
WITH q AS (SELECT name, score + 0 AS s FROM `t 1`) SELECT name FROM q WHERE s > 8 ORDER BY s
-- [('Zoe',), ('Ann',), ('Émile',)]
(SELECT 'a' AS x) UNION (SELECT 'b') UNION ALL (SELECT 'a') ORDER BY x
-- [('a',), ('a',), ('b',)]
SELECT EXISTS(SELECT 1 FROM `t 1` WHERE year = 1999), NOT EXISTS(SELECT 1 FROM `t 1`)
-- [(1, 0)]
SELECT "it's", 'it''s', 'it\'s', 'a\nb'
-- [("it's", "it's", "it's", 'a\nb')]
SELECT name FROM `t 1` WHERE `year` = '' OR year IS NULL
-- [('Zoe',)]
SHOW TABLES
-- [('t 1',)]
DESCRIBE `t 1`
-- [('name', 'text', 'YES', '', None, ''), ('year', 'text', 'YES', '', None, ''), ('score', 'text', 'YES', '', None, ''), ('2013_x', 'text', 'YES', '', None, ''), ('day', 'text', 'YES', '', None, '')]
SHOW COLUMNS FROM `t 1` LIKE 'n%'
-- [('name', 'text', 'YES', '', None, '')]
SELECT table_name, column_name FROM information_schema.columns WHERE table_name = 't 1' AND ordinal_position < 3
-- [('t 1', 'name'), ('t 1', 'year')]
SELECT STDDEV(score), VARIANCE(score), STDDEV_SAMP(score) FROM `t 1`
-- [(39.30012722625717, 1544.5, 45.379878066532235)]
SELECT name FROM `t 1` WHERE score
-- [('Ann',), ('bob',), ('Émile',), ('Zoe',)]
SELECT name FROM `t 1` WHERE year = 1999.0
-- [('Ann',)]
SELECT name FROM `t 1` WHERE (name, score) IN (('Ann', '12'), ('bob', '8'))
-- [('Ann',)]
SELECT MAX(name), MIN(name) FROM `t 1`
-- [('Zoe', 'Ann')]
SELECT REGEXP_REPLACE('abc123', '[0-9]+', 'X'), REGEXP_SUBSTR('abc123', '[0-9]+'), REGEXP_INSTR('abc123', '[0-9]')
-- [('abcX', '123', 4)]
SELECT DATE_ADD('2020-01-31', INTERVAL 1 MONTH), DATE_SUB('2020-03-01', INTERVAL 1 DAY), LAST_DAY('2020-02-03')
-- [('2020-02-29', '2020-02-29', '2020-02-29')]
SELECT STR_TO_DATE('January 20, 1887', '%M %d, %Y'), STR_TO_DATE('x', '%Y')
-- [('1887-01-20', None)]
SELECT DISTINCT LEFT(year, 1) FROM `t 1` ORDER BY 1
-- [('',), ('1',), ('2',)]
SELECT name FROM `t 1` ORDER BY FIELD(name, 'Zoe', 'Ann') DESC, name LIMIT 1
-- [('Ann',)]
SELECT nope FROM `t 1`
-- 1054 (42S22)
SELECT name FROM `T 1`
-- 1146 (42S02)
SELECT name FROM nope
-- 1146 (42S02)
SELECT name FROM 't 1'
-- 1064 (42000)
SELECT FROM `t 1`
-- 1064 (42000)
SELEC name
-- 1064 (42000)
SELECT NOPE(name) FROM `t 1`
-- 1305 (42000)
SELECT a.name, b.name FROM `t 1` a, `t 1` b WHERE name = 'Ann'
-- 1052 (23000)
INSERT INTO `t 1` VALUES ('x')
-- 1136 (21S01)
INSERT INTO `t 1` (name, nope) VALUES ('x', 'y')
-- 1054 (42S22)
CREATE TABLE `t 1` (a TEXT)
-- 1050 (42S01)
SELECT MAX(name) FROM `t 1` WHERE MAX(score) > 1
-- 1111 (HY000)
SELECT name AS n FROM `t 1` HAVING n = 'ANN'
-- [('Ann',)]
SELECT name, score AS s FROM `t 1` HAVING s > 8 ORDER BY name DESC LIMIT 2
-- [('Zoe', '9'), ('Émile', '100')]
SELECT COUNT(*) AS n FROM `t 1` HAVING n > 4
-- []
SELECT 1 FROM DUAL WHERE 2 > '10'
-- []
CREATE INDEX i ON `t 1` (name(10))
-- []
SELECT 'a' || 'b', '1' || 'b'
-- [(0, 1)]
SELECT name, SUM(score) OVER (ORDER BY score + 0) FROM `t 1` ORDER BY score + 0
-- [('bob', 7.0), ('Zoe', 16.0), ('Ann', 28.0), ('Émile', 128.0)]
