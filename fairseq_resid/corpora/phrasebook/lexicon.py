"""The words and sentence patterns of the English to Vietnamese phrasebook: data alone, no code.

A pattern names its slots in braces, `{slot:form}`; a digit after a slot's name marks a second, different
filler of the same slot (`{place1}`, `{place2}`). The form is empty for English and `vi` for Vietnamese.
Every English word here has one translation for each kind of noun it stands with, so that a sentence has one
translation: "old" is "cũ" of things and "già" of living beings, colours are "màu đỏ" of things and "đỏ" of animals.
"""

from __future__ import annotations

ENGLISH_UNITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
VIETNAMESE_UNITS = ("không", "một", "hai", "ba", "bốn", "năm", "sáu", "bảy", "tám", "chín")

# subject form, third person singular?, be, was, Vietnamese
PRONOUNS = (
    ("I", False, "am", "was", "tôi"),
    ("you", False, "are", "were", "bạn"),
    ("he", True, "is", "was", "anh ấy"),
    ("she", True, "is", "was", "cô ấy"),
    ("we", False, "are", "were", "chúng tôi"),
    ("they", False, "are", "were", "họ"),
)

# determiner, Vietnamese possessor; subjects and companions have different owners, so that they never meet
OWNERS_OF_SUBJECTS = (("my", "tôi"), ("his", "anh ấy"), ("her", "cô ấy"))
OWNERS_OF_COMPANIONS = (("your", "bạn"), ("our", "chúng tôi"), ("their", "họ"))

# possessive pronoun, Vietnamese possessor
POSSESSIVES = (
    ("mine", "tôi"),
    ("yours", "bạn"),
    ("his", "anh ấy"),
    ("hers", "cô ấy"),
    ("ours", "chúng tôi"),
    ("theirs", "họ"),
)

# object pronoun, Vietnamese
OBJECTS = (("me", "tôi"), ("him", "anh ấy"), ("her", "cô ấy"), ("us", "chúng tôi"), ("them", "họ"))

NAMES = (
    ("Lan", "Lan"),
    ("Nam", "Nam"),
    ("Mai", "Mai"),
    ("Linh", "Linh"),
    ("Minh", "Minh"),
    ("Hung", "Hùng"),
    ("Tuan", "Tuấn"),
    ("Huong", "Hương"),
    ("Thao", "Thảo"),
    ("Quan", "Quân"),
)

KIN = (
    ("mother", "mẹ"),
    ("father", "bố"),
    ("grandmother", "bà"),
    ("grandfather", "ông"),
    ("older brother", "anh trai"),
    ("younger brother", "em trai"),
    ("older sister", "chị gái"),
    ("younger sister", "em gái"),
    ("best friend", "bạn thân"),
    ("neighbor", "hàng xóm"),
    ("son", "con trai"),
    ("daughter", "con gái"),
)

JOBS = (
    ("doctor", "bác sĩ"),
    ("teacher", "giáo viên"),
    ("engineer", "kỹ sư"),
    ("nurse", "y tá"),
    ("lawyer", "luật sư"),
    ("student", "sinh viên"),
    ("singer", "ca sĩ"),
    ("driver", "tài xế"),
    ("worker", "công nhân"),
    ("journalist", "nhà báo"),
    ("writer", "nhà văn"),
    ("pilot", "phi công"),
    ("artist", "họa sĩ"),
    ("actor", "diễn viên"),
    ("dentist", "nha sĩ"),
    ("scientist", "nhà khoa học"),
    ("secretary", "thư ký"),
    ("chef", "đầu bếp"),
)

# what stands before a job
TRAITS = (
    ("young", "trẻ"),
    ("old", "già"),
    ("tall", "cao"),
    ("famous", "nổi tiếng"),
    ("good", "giỏi"),
    ("hardworking", "chăm chỉ"),
    ("intelligent", "thông minh"),
    ("kind", "tốt bụng"),
    ("rich", "giàu"),
    ("poor", "nghèo"),
    ("brave", "dũng cảm"),
    ("friendly", "thân thiện"),
    ("honest", "thật thà"),
    ("careful", "cẩn thận"),
)

# comparatives of people
QUALITIES = (
    ("taller", "cao"),
    ("younger", "trẻ"),
    ("richer", "giàu"),
    ("poorer", "nghèo"),
    ("stronger", "khỏe"),
    ("kinder", "tốt bụng"),
    ("braver", "dũng cảm"),
    ("busier", "bận"),
    ("friendlier", "thân thiện"),
    ("more famous", "nổi tiếng"),
    ("more hardworking", "chăm chỉ"),
    ("more intelligent", "thông minh"),
    ("more careful", "cẩn thận"),
    ("more honest", "thật thà"),
)

FEELINGS = (
    ("tired", "mệt"),
    ("busy", "bận"),
    ("sick", "ốm"),
    ("sad", "buồn"),
    ("happy", "vui"),
    ("hungry", "đói"),
    ("thirsty", "khát"),
    ("sleepy", "buồn ngủ"),
    ("worried", "lo lắng"),
    ("angry", "tức giận"),
)

MOODS_OF_ANIMALS = (
    ("hungry", "đói"),
    ("thirsty", "khát"),
    ("tired", "mệt"),
    ("fat", "béo"),
    ("thin", "gầy"),
    ("strong", "khỏe"),
    ("beautiful", "đẹp"),
    ("friendly", "thân thiện"),
)

# singular, plural, classifier and noun
THINGS = (
    ("shirt", "shirts", "cái áo sơ mi"),
    ("hat", "hats", "cái mũ"),
    ("table", "tables", "cái bàn"),
    ("chair", "chairs", "cái ghế"),
    ("bag", "bags", "cái túi"),
    ("cup", "cups", "cái cốc"),
    ("skirt", "skirts", "cái váy"),
    ("jacket", "jackets", "cái áo khoác"),
    ("sweater", "sweaters", "cái áo len"),
    ("umbrella", "umbrellas", "cái ô"),
    ("lamp", "lamps", "cái đèn"),
    ("clock", "clocks", "cái đồng hồ"),
    ("pillow", "pillows", "cái gối"),
    ("blanket", "blankets", "cái chăn"),
    ("mirror", "mirrors", "cái gương"),
    ("bowl", "bowls", "cái bát"),
    ("plate", "plates", "cái đĩa"),
    ("spoon", "spoons", "cái thìa"),
    ("towel", "towels", "cái khăn"),
    ("fan", "fans", "cái quạt"),
    ("pen", "pens", "cái bút"),
    ("bicycle", "bicycles", "chiếc xe đạp"),
    ("car", "cars", "chiếc ô tô"),
    ("motorbike", "motorbikes", "chiếc xe máy"),
    ("phone", "phones", "chiếc điện thoại"),
    ("computer", "computers", "chiếc máy tính"),
    ("suitcase", "suitcases", "chiếc va li"),
    ("backpack", "backpacks", "chiếc ba lô"),
    ("camera", "cameras", "chiếc máy ảnh"),
    ("wallet", "wallets", "chiếc ví"),
    ("ball", "balls", "quả bóng"),
    ("knife", "knives", "con dao"),
    ("doll", "dolls", "con búp bê"),
    ("carpet", "carpets", "tấm thảm"),
    ("notebook", "notebooks", "quyển vở"),
    ("flower", "flowers", "bông hoa"),
)
ADJECTIVES_OF_THINGS = (
    ("red", "màu đỏ"),
    ("blue", "màu xanh"),
    ("green", "màu xanh lá cây"),
    ("yellow", "màu vàng"),
    ("white", "màu trắng"),
    ("black", "màu đen"),
    ("brown", "màu nâu"),
    ("new", "mới"),
    ("old", "cũ"),
    ("big", "to"),
    ("small", "nhỏ"),
)

TEXTS = (
    ("book", "books", "quyển sách"),
    ("dictionary", "dictionaries", "quyển từ điển"),
    ("novel", "novels", "quyển tiểu thuyết"),
    ("magazine", "magazines", "quyển tạp chí"),
    ("newspaper", "newspapers", "tờ báo"),
    ("map", "maps", "tấm bản đồ"),
)
ADJECTIVES_OF_TEXTS = (("new", "mới"), ("old", "cũ"), ("big", "to"), ("small", "nhỏ"), ("useful", "hữu ích"))

FRUITS = (
    ("orange", "oranges", "quả cam"),
    ("banana", "bananas", "quả chuối"),
    ("apple", "apples", "quả táo"),
    ("mango", "mangoes", "quả xoài"),
    ("watermelon", "watermelons", "quả dưa hấu"),
    ("pineapple", "pineapples", "quả dứa"),
    ("papaya", "papayas", "quả đu đủ"),
    ("peach", "peaches", "quả đào"),
)
ADJECTIVES_OF_FRUITS = (("big", "to"), ("small", "nhỏ"), ("ripe", "chín"), ("fresh", "tươi"), ("sweet", "ngọt"))

ANIMALS = (
    ("dog", "dogs", "con chó"),
    ("cat", "cats", "con mèo"),
    ("horse", "horses", "con ngựa"),
    ("cow", "cows", "con bò"),
    ("buffalo", "buffaloes", "con trâu"),
    ("pig", "pigs", "con lợn"),
    ("duck", "ducks", "con vịt"),
    ("rabbit", "rabbits", "con thỏ"),
    ("goat", "goats", "con dê"),
    ("monkey", "monkeys", "con khỉ"),
    ("bird", "birds", "con chim"),
    ("elephant", "elephants", "con voi"),
)
ADJECTIVES_OF_ANIMALS = (
    ("black", "đen"),
    ("white", "trắng"),
    ("brown", "nâu"),
    ("old", "già"),
    ("big", "to"),
    ("small", "nhỏ"),
)

# people of no trade, with the classifiers of people
FOLK = (
    ("man", "men", "người đàn ông"),
    ("woman", "women", "người phụ nữ"),
    ("child", "children", "đứa trẻ"),
    ("boy", "boys", "cậu bé"),
    ("girl", "girls", "cô bé"),
    ("farmer", "farmers", "người nông dân"),
    ("soldier", "soldiers", "người lính"),
)
ADJECTIVES_OF_FOLK = (
    ("tall", "cao"),
    ("thin", "gầy"),
    ("fat", "béo"),
    ("strong", "khỏe"),
    ("poor", "nghèo"),
    ("friendly", "thân thiện"),
    ("intelligent", "thông minh"),
)

WORTHS = (("cheap", "rẻ"), ("expensive", "đắt"), ("good", "tốt"), ("beautiful", "đẹp"))
COMPARISONS_OF_THINGS = (
    ("cheaper", "rẻ"),
    ("more expensive", "đắt"),
    ("better", "tốt"),
    ("more beautiful", "đẹp"),
    ("heavier", "nặng"),
    ("cleaner", "sạch"),
)

FOODS = (
    ("beef", "thịt bò"),
    ("pork", "thịt lợn"),
    ("chicken", "thịt gà"),
    ("fish", "cá"),
    ("shrimp", "tôm"),
    ("crab", "cua"),
    ("tofu", "đậu phụ"),
    ("vegetables", "rau"),
    ("eggs", "trứng"),
    ("noodles", "mì"),
    ("mushrooms", "nấm"),
    ("potatoes", "khoai tây"),
    ("corn", "ngô"),
    ("carrots", "cà rốt"),
)

# what one orders, in the plural
PORTIONS = (
    ("cups of coffee", "cốc cà phê"),
    ("cups of tea", "cốc trà"),
    ("glasses of milk", "ly sữa"),
    ("glasses of water", "ly nước"),
    ("glasses of lemonade", "ly nước chanh"),
    ("bottles of beer", "chai bia"),
    ("bottles of wine", "chai rượu vang"),
    ("bowls of soup", "bát súp"),
    ("bowls of rice", "bát cơm"),
    ("bowls of noodles", "bát mì"),
    ("plates of vegetables", "đĩa rau"),
    ("plates of shrimp", "đĩa tôm"),
    ("plates of beef", "đĩa thịt bò"),
    ("loaves of bread", "ổ bánh mì"),
)

PLACES = (
    ("market", "chợ"),
    ("hospital", "bệnh viện"),
    ("airport", "sân bay"),
    ("bank", "ngân hàng"),
    ("library", "thư viện"),
    ("park", "công viên"),
    ("museum", "bảo tàng"),
    ("post office", "bưu điện"),
    ("station", "nhà ga"),
    ("hotel", "khách sạn"),
    ("restaurant", "nhà hàng"),
    ("pharmacy", "hiệu thuốc"),
    ("beach", "bãi biển"),
    ("bookstore", "hiệu sách"),
    ("supermarket", "siêu thị"),
    ("office", "văn phòng"),
    ("university", "trường đại học"),
    ("church", "nhà thờ"),
    ("cinema", "rạp chiếu phim"),
    ("stadium", "sân vận động"),
    ("zoo", "sở thú"),
    ("school", "trường học"),
    ("theater", "nhà hát"),
    ("factory", "nhà máy"),
)
SIZES_OF_PLACES = (("big", "to"), ("small", "nhỏ"), ("new", "mới"), ("old", "cũ"), ("beautiful", "đẹp"))
RELATIONS_OF_PLACES = (
    ("near", "gần"),
    ("next to", "cạnh"),
    ("opposite", "đối diện"),
    ("behind", "đằng sau"),
    ("in front of", "đằng trước"),
)
SPOTS = (
    ("in the garden", "trong vườn"),
    ("in the yard", "ngoài sân"),
    ("in the kitchen", "trong bếp"),
    ("in the room", "trong phòng"),
    ("behind the door", "sau cửa"),
    ("near the window", "gần cửa sổ"),
    ("near the gate", "gần cổng"),
    ("near the river", "gần sông"),
    ("behind the house", "sau nhà"),
    ("in front of the house", "trước nhà"),
    ("next to the bed", "cạnh giường"),
    ("under the tree", "dưới gốc cây"),
)

CITIES = (
    ("Hanoi", "Hà Nội"),
    ("Hue", "Huế"),
    ("Saigon", "Sài Gòn"),
    ("Danang", "Đà Nẵng"),
    ("Dalat", "Đà Lạt"),
    ("Haiphong", "Hải Phòng"),
    ("Sapa", "Sa Pa"),
    ("Vinh", "Vinh"),
    ("Bangkok", "Băng Cốc"),
    ("Beijing", "Bắc Kinh"),
)
WEATHERS = (("hot", "nóng"), ("cold", "lạnh"), ("cool", "mát"), ("warm", "ấm"), ("humid", "ẩm"), ("dry", "khô"))
RIDES = (
    ("bus", "xe buýt"),
    ("taxi", "taxi"),
    ("car", "ô tô"),
    ("motorbike", "xe máy"),
    ("bicycle", "xe đạp"),
    ("train", "tàu hỏa"),
)
TRIPS = (("train", "chuyến tàu"), ("flight", "chuyến bay"), ("coach", "chuyến xe khách"))
EVENTS = (
    ("meeting", "cuộc họp"),
    ("class", "lớp học"),
    ("film", "bộ phim"),
    ("concert", "buổi hòa nhạc"),
    ("party", "bữa tiệc"),
    ("match", "trận đấu"),
    ("exam", "kỳ thi"),
    ("wedding", "đám cưới"),
)

# base, third person, past, participle, -ing, the rest, Vietnamese
DEALS = (
    ("buy", "buys", "bought", "bought", "buying", "", "mua"),
    ("sell", "sells", "sold", "sold", "selling", "", "bán"),
    ("find", "finds", "found", "found", "finding", "", "tìm thấy"),
    ("see", "sees", "saw", "seen", "seeing", "", "nhìn thấy"),
    ("choose", "chooses", "chose", "chosen", "choosing", "", "chọn"),
)
# done for somebody: "sell for" is "bán cho", which would read as "sell to"
FAVOURS = (
    ("buy", "buys", "bought", "bought", "buying", "", "mua"),
    ("choose", "chooses", "chose", "chosen", "choosing", "", "chọn"),
    ("bring", "brings", "brought", "brought", "bringing", "", "mang"),
    ("keep", "keeps", "kept", "kept", "keeping", "", "giữ"),
)
USES_OF_FOOD = (
    ("eat", "eats", "ate", "eaten", "eating", "", "ăn"),
    ("buy", "buys", "bought", "bought", "buying", "", "mua"),
    ("sell", "sells", "sold", "sold", "selling", "", "bán"),
    ("cook", "cooks", "cooked", "cooked", "cooking", "", "nấu"),
)
WISHES = (
    ("want", "wants", "wanted", "wanted", "wanting", "", "muốn"),
    ("need", "needs", "needed", "needed", "needing", "", "cần"),
    ("plan", "plans", "planned", "planned", "planning", "", "dự định"),
    ("hope", "hopes", "hoped", "hoped", "hoping", "", "hy vọng"),
)
ACTIVITIES = (
    ("drink", "drinks", "drank", "drunk", "drinking", " coffee", "uống cà phê"),
    ("drink", "drinks", "drank", "drunk", "drinking", " beer", "uống bia"),
    ("eat", "eats", "ate", "eaten", "eating", " noodles", "ăn mì"),
    ("eat", "eats", "ate", "eaten", "eating", " fish", "ăn cá"),
    ("read", "reads", "read", "read", "reading", " books", "đọc sách"),
    ("write", "writes", "wrote", "written", "writing", " letters", "viết thư"),
    ("listen", "listens", "listened", "listened", "listening", " to music", "nghe nhạc"),
    ("watch", "watches", "watched", "watched", "watching", " films", "xem phim"),
    ("play", "plays", "played", "played", "playing", " football", "chơi bóng đá"),
    ("play", "plays", "played", "played", "playing", " chess", "chơi cờ"),
    ("learn", "learns", "learned", "learned", "learning", " Vietnamese", "học tiếng Việt"),
    ("learn", "learns", "learned", "learned", "learning", " Chinese", "học tiếng Trung"),
    ("teach", "teaches", "taught", "taught", "teaching", " English", "dạy tiếng Anh"),
    ("speak", "speaks", "spoke", "spoken", "speaking", " English", "nói tiếng Anh"),
    ("sell", "sells", "sold", "sold", "selling", " flowers", "bán hoa"),
    ("buy", "buys", "bought", "bought", "buying", " vegetables", "mua rau"),
    ("take", "takes", "took", "taken", "taking", " photos", "chụp ảnh"),
    ("draw", "draws", "drew", "drawn", "drawing", " pictures", "vẽ tranh"),
    ("wash", "washes", "washed", "washed", "washing", " dishes", "rửa bát"),
    ("sing", "sings", "sang", "sung", "singing", "", "hát"),
    ("dance", "dances", "danced", "danced", "dancing", "", "nhảy múa"),
    ("work", "works", "worked", "worked", "working", "", "làm việc"),
    ("rest", "rests", "rested", "rested", "resting", "", "nghỉ ngơi"),
    ("exercise", "exercises", "exercised", "exercised", "exercising", "", "tập thể dục"),
)

DAYS = (
    ("Monday", "thứ Hai"),
    ("Tuesday", "thứ Ba"),
    ("Wednesday", "thứ Tư"),
    ("Thursday", "thứ Năm"),
    ("Friday", "thứ Sáu"),
    ("Saturday", "thứ Bảy"),
    ("Sunday", "Chủ nhật"),
)
PAST_TIMES = (
    ("yesterday", "hôm qua"),
    ("last night", "tối qua"),
    ("this morning", "sáng nay"),
    ("last week", "tuần trước"),
    ("last month", "tháng trước"),
    ("last year", "năm ngoái"),
)
FUTURE_TIMES = (
    ("tomorrow", "ngày mai"),
    ("tonight", "tối nay"),
    ("tomorrow morning", "sáng mai"),
    ("tomorrow afternoon", "chiều mai"),
    ("next week", "tuần sau"),
    ("next month", "tháng sau"),
    ("next year", "năm sau"),
)
PRESENT_TIMES = (("today", "hôm nay"), ("this week", "tuần này"), ("this month", "tháng này"), ("this year", "năm nay"))
REPEATED_TIMES = (
    ("every day", "mỗi ngày"),
    ("every morning", "mỗi sáng"),
    ("every afternoon", "mỗi chiều"),
    ("every evening", "mỗi tối"),
    ("every week", "mỗi tuần"),
    ("every month", "mỗi tháng"),
)
# spans counted from today: "two days ago", "in two days"
SPANS = (("days", "ngày"), ("weeks", "tuần"), ("months", "tháng"))
FREQUENCIES = (
    ("always", "luôn"),
    ("usually", "thường"),
    ("sometimes", "thỉnh thoảng"),
    ("rarely", "hiếm khi"),
    ("never", "không bao giờ"),
)
# greeting of the part of the day
PARTS_OF_DAY = (("morning", "sáng"), ("afternoon", "chiều"), ("evening", "tối"))
# phrase, word after the hour, the hours it goes with
CLOCK_PERIODS = (
    ("in the morning", "sáng", (6, 7, 8, 9, 10, 11)),
    ("in the afternoon", "chiều", (2, 3, 4, 5)),
    ("in the evening", "tối", (7, 8, 9, 10)),
)
# English before the hour, Vietnamese after it; "kém" counts back from the hour named, as English does
MINUTES = (
    ("{hour} o'clock", "{hour} giờ"),
    ("five past {hour}", "{hour} giờ năm"),
    ("ten past {hour}", "{hour} giờ mười"),
    ("a quarter past {hour}", "{hour} giờ mười lăm"),
    ("twenty past {hour}", "{hour} giờ hai mươi"),
    ("half past {hour}", "{hour} giờ rưỡi"),
    ("twenty to {hour}", "{hour} giờ kém hai mươi"),
    ("a quarter to {hour}", "{hour} giờ kém mười lăm"),
    ("ten to {hour}", "{hour} giờ kém mười"),
    ("five to {hour}", "{hour} giờ kém năm"),
)
THIS_THAT = (("this", "này"), ("that", "kia"))
THESE_THOSE = (("these", "này"), ("those", "kia"))

# name, slots whose fillers together are held out, English, Vietnamese
TEMPLATES = (
    (
        "bought_at",
        "goods",
        "{subject} {deal:past} a {goods} at the {place} {past}.",
        "{past:vi} {subject:vi} đã {deal:vi} một {goods:vi} ở {place:vi}.",
    ),
    (
        "did_not_buy",
        "goods",
        "{subject} did not {deal} the {goods} {past}.",
        "{past:vi} {subject:vi} đã không {deal:vi} {goods:vi}.",
    ),
    (
        "folk_bought",
        "folk deal",
        "{this} {folk} {deal:past} {count} {goods:plural} {past}.",
        "{past:vi} {folk:vi} {this:vi} đã {deal:vi} {count:vi} {goods:vi}.",
    ),
    (
        "folk_doing",
        "folk activity",
        "{this} {folk} is {activity:ing} at the {place}.",
        "{folk:vi} {this:vi} đang {activity:vi} ở {place:vi}.",
    ),
    (
        "saw_folk",
        "folk place",
        "{subject} saw {count} {folk:plural} at the {place} {past}.",
        "{past:vi} {subject:vi} đã nhìn thấy {count:vi} {folk:vi} ở {place:vi}.",
    ),
    (
        "not_yet",
        "goods",
        "{subject} {subject:have} not {favour:participle} the {goods} for {companion} yet.",
        "{subject:vi} chưa {favour:vi} {goods:vi} cho {companion:vi}.",
    ),
    (
        "will_bring",
        "goods",
        "{subject} will {favour} {count} {goods:plural} for {companion} {future}.",
        "{future:vi} {subject:vi} sẽ {favour:vi} {count:vi} {goods:vi} cho {companion:vi}.",
    ),
    (
        "doing_now",
        "activity place",
        "{subject} {subject:be} {activity:ing} at the {place} with {companion}.",
        "{subject:vi} đang {activity:vi} ở {place:vi} với {companion:vi}.",
    ),
    (
        "while",
        "activity1 activity2",
        "{subject} {subject:be} {activity1:ing} while {companion} is {activity2:ing}.",
        "{subject:vi} đang {activity1:vi} trong khi {companion:vi} đang {activity2:vi}.",
    ),
    (
        "on_days",
        "activity day",
        "{subject} {frequency} {activity:{subject:present}} at the {place} on {day}s.",
        "{subject:vi} {frequency:vi} {activity:vi} ở {place:vi} vào {day:vi}.",
    ),
    (
        "every_time",
        "activity repeated",
        "{subject} {activity:{subject:present}} with {companion} {repeated}.",
        "{repeated:vi} {subject:vi} {activity:vi} với {companion:vi}.",
    ),
    (
        "did_question",
        "activity place",
        "Did {subject} {activity} at the {place} {past}?",
        "{past:vi} {subject:vi} có {activity:vi} ở {place:vi} không?",
    ),
    (
        "wish",
        "wish activity",
        "{pronoun} {wish:{pronoun:present}} to {activity} with {companion} {future}.",
        "{future:vi} {pronoun:vi} {wish:vi} {activity:vi} với {companion:vi}.",
    ),
    (
        "not_want",
        "activity feeling",
        "{pronoun} {pronoun:do} not want to {activity} {present} because {pronoun} {pronoun:be} very {feeling}.",
        "{present:vi} {pronoun:vi} không muốn {activity:vi} vì {pronoun:vi} rất {feeling:vi}.",
    ),
    (
        "not_this_food",
        "food1 food2",
        "{subject} {subject:do} not {use} {food1} but often {use:{subject:present}} {food2}.",
        "{subject:vi} không {use:vi} {food1:vi} nhưng thường {use:vi} {food2:vi}.",
    ),
    (
        "have_animals",
        "beast1 beast2",
        "{subject} {subject:have} {count1} {coat1} {beast1:plural} and {count2} {coat2} {beast2:plural}.",
        "{subject:vi} có {count1:vi} {beast1:vi} {coat1:vi} và {count2:vi} {beast2:vi} {coat2:vi}.",
    ),
    (
        "not_any",
        "goods",
        "{subject} {subject:do} not need any {goods:plural} {present}.",
        "{present:vi} {subject:vi} không cần {goods:vi} nào.",
    ),
    (
        "costs",
        "goods",
        "{this} {goods} costs {price} dong at the {place}.",
        "{goods:vi} {this:vi} giá {price:vi} đồng ở {place:vi}.",
    ),
    (
        "cost",
        "goods",
        "{these} {count} {goods:plural} cost {price} dong.",
        "{count:vi} {goods:vi} {these:vi} giá {price:vi} đồng.",
    ),
    (
        "how_much",
        "goods",
        "How much is {this} {goods}?",
        "{goods:vi} {this:vi} bao nhiêu tiền?",
    ),
    (
        "how_much_paid",
        "goods",
        "How much did {subject} pay for {this} {goods}?",
        "{subject:vi} đã trả bao nhiêu tiền cho {goods:vi} {this:vi}?",
    ),
    (
        "how_many",
        "goods",
        "How many {goods:plural} did {subject} {deal} {past}?",
        "{past:vi} {subject:vi} đã {deal:vi} bao nhiêu {goods:vi}?",
    ),
    (
        "where",
        "thing",
        "Where is {owner} {thing}?",
        "{thing:vi} {owner:vi} ở đâu?",
    ),
    (
        "is_there",
        "thing",
        "{owner} {thing} is {spot}.",
        "{thing:vi} {owner:vi} ở {spot:vi}.",
    ),
    (
        "near",
        "place1 place2",
        "The {size1} {place1} is {relation} the {size2} {place2}.",
        "{place1:vi} {size1:vi} ở {relation:vi} {place2:vi} {size2:vi}.",
    ),
    (
        "distance",
        "place1 place2",
        "The {place1} is {number} kilometers from the {place2}.",
        "{place1:vi} cách {place2:vi} {number:vi} ki-lô-mét.",
    ),
    (
        "went_by",
        "place1 place2",
        "{pronoun} went from the {place1} to the {place2} by {ride} {past}.",
        "{past:vi} {pronoun:vi} đã đi từ {place1:vi} đến {place2:vi} bằng {ride:vi}.",
    ),
    (
        "leaves_at",
        "city1 city2",
        "The {trip} from {city1} to {city2} leaves at {clock}.",
        "{trip:vi} từ {city1:vi} đến {city2:vi} khởi hành lúc {clock:vi}.",
    ),
    (
        "starts_at",
        "event place",
        "The {event} at the {place} starts at {clock}.",
        "{event:vi} ở {place:vi} bắt đầu lúc {clock:vi}.",
    ),
    (
        "what_time",
        "place future",
        "What time will {subject} go to the {place} {future}?",
        "{future:vi} {subject:vi} sẽ đi đến {place:vi} lúc mấy giờ?",
    ),
    (
        "must_go",
        "hour place",
        "It is {hour}, so {pronoun} {pronoun:have} to go to the {place}.",
        "Bây giờ là {hour:vi} nên {pronoun:vi} phải đi đến {place:vi}.",
    ),
    (
        "ask_time",
        "name activity",
        "{name}, what time is it? I will {activity} at {hour}.",
        "{name:vi} ơi, mấy giờ rồi? Tôi sẽ {activity:vi} lúc {hour:vi}.",
    ),
    (
        "is_job",
        "trait job",
        "{relative} is a {trait} {job} in {city}.",
        "{relative:vi} là một {job:vi} {trait:vi} ở {city:vi}.",
    ),
    (
        "is_not_job",
        "job1 job2",
        "{relative} is not a {job1} but a {job2}.",
        "{relative:vi} không phải là {job1:vi} mà là {job2:vi}.",
    ),
    (
        "is_job_question",
        "trait job",
        "Is {relative} a {trait} {job} in {city}?",
        "{relative:vi} có phải là một {job:vi} {trait:vi} ở {city:vi} không?",
    ),
    (
        "felt",
        "feeling1 feeling2",
        "{relative} was very {feeling1} {past} but is very {feeling2} now.",
        "{past:vi} {relative:vi} rất {feeling1:vi} nhưng bây giờ rất {feeling2:vi}.",
    ),
    (
        "person_than",
        "kin quality",
        "{kin} is {quality} than {companion}.",
        "{kin:vi} {quality:vi} hơn {companion:vi}.",
    ),
    (
        "job_than",
        "job1 job2",
        "The {job1} in {city1} is {quality} than the {job2} in {city2}.",
        "{job1:vi} ở {city1:vi} {quality:vi} hơn {job2:vi} ở {city2:vi}.",
    ),
    (
        "thing_than",
        "article1 article2",
        "This {colour1} {article1} is {comparison} than that {colour2} {article2}.",
        "{article1:vi} {colour1:vi} này {comparison:vi} hơn {article2:vi} {colour2:vi} kia.",
    ),
    (
        "which",
        "goods",
        "The {goods} that {subject} {deal:past} {past} is very {worth}.",
        "{goods:vi} mà {subject:vi} đã {deal:vi} {past:vi} rất {worth:vi}.",
    ),
    (
        "there_are",
        "thing",
        "There are {number} {thing:plural} at the {place}.",
        "Có {number:vi} {thing:vi} ở {place:vi}.",
    ),
    (
        "are_there",
        "goods",
        "Are there any {goods:plural} at the {place} {present}?",
        "{present:vi} ở {place:vi} có {goods:vi} nào không?",
    ),
    (
        "whose",
        "goods",
        "Is {this} {goods} {possessive1} or {possessive2}?",
        "{goods:vi} {this:vi} là {possessive1:vi} hay {possessive2:vi}?",
    ),
    (
        "order",
        "portion1 portion2",
        "{subject} would like {count1} {portion1} and {count2} {portion2}.",
        "{subject:vi} muốn {count1:vi} {portion1:vi} và {count2:vi} {portion2:vi}.",
    ),
    (
        "weather",
        "city weather1 weather2",
        "It was very {weather1} in {city} {past} but is {weather2} now.",
        "{past:vi} ở {city:vi} trời rất {weather1:vi} nhưng bây giờ trời {weather2:vi}.",
    ),
    (
        "hello",
        "job city",
        "Hello {name}, this is {kin}, a {trait} {job} from {city}.",
        "Chào {name:vi}, đây là {kin:vi}, một {job:vi} {trait:vi} đến từ {city:vi}.",
    ),
    (
        "nice_to_meet",
        "trait job",
        "Nice to meet you, {name}! I am a {trait} {job} in {city}.",
        "Rất vui được gặp bạn, {name:vi}! Tôi là một {job:vi} {trait:vi} ở {city:vi}.",
    ),
    (
        "how_is",
        "kin_noun1 kin_noun2",
        "Good {part}, {name}! How are your {kin_noun1} and your {kin_noun2} {present}?",
        "Chào buổi {part:vi}, {name:vi}! {present:vi} {kin_noun1:vi} của bạn và {kin_noun2:vi} của bạn có khỏe không?",
    ),
    (
        "my_name",
        "name city",
        "My name is {name}, I am {age} years old and I live in {city}.",
        "Tên của tôi là {name:vi}, tôi {age:vi} tuổi và tôi sống ở {city:vi}.",
    ),
    (
        "is_aged",
        "relative place",
        "{relative} is {age} years old and works at the {place}.",
        "{relative:vi} {age:vi} tuổi và làm việc ở {place:vi}.",
    ),
    (
        "please_give",
        "goods",
        "Please give {object} {count} {goods:plural}.",
        "Làm ơn đưa cho {object:vi} {count:vi} {goods:vi}.",
    ),
    (
        "gave",
        "goods",
        "{subject} gave {companion} a {goods} {past}.",
        "{past:vi} {subject:vi} đã tặng {companion:vi} một {goods:vi}.",
    ),
    (
        "did_not_go",
        "place feeling",
        "{pronoun} did not go to the {place} {past} because {pronoun} {pronoun:was} {feeling}.",
        "{past:vi} {pronoun:vi} đã không đi đến {place:vi} vì {pronoun:vi} {feeling:vi}.",
    ),
    (
        "animal_is",
        "animal",
        "{this} {animal} is very {mood1} but not {mood2}.",
        "{animal:vi} {this:vi} rất {mood1:vi} nhưng không {mood2:vi}.",
    ),
)

# templates with few slots or much fixed wording, drawn half as often as the others
RARE_TEMPLATES = (
    "how_much",
    "how_much_paid",
    "where",
    "whose",
    "not_want",
    "did_not_go",
    "must_go",
    "ask_time",
    "is_job_question",
    "person_than",
    "weather",
    "nice_to_meet",
    "how_is",
    "my_name",
)
